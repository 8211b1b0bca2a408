package facts

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestFrameLinks: frames go on the links on which this node can announce. The link with its address is marked; of the
// others a link comes first that announces addresses without a link of their own.
func TestFrameLinks(t *testing.T) {
	prefix := netip.MustParsePrefix
	s := lb.State{L2Advertisements: []lb.L2Advertisement{{Name: "all"}}}
	links := []lb.Interface{
		{Index: 1, Name: "lo", Loopback: true, Up: true, Prefixes: []netip.Prefix{prefix("127.0.0.1/8")}},
		{Index: 2, Name: "eth0", MAC: lb.MAC{2, 2}, Up: true, Prefixes: []netip.Prefix{prefix("192.0.2.1/24")}},
		{Index: 3, Name: "docker0", MAC: lb.MAC{2, 3}, Up: true, NoClients: true,
			Prefixes: []netip.Prefix{prefix("172.17.0.1/16")}},
		{Index: 4, Name: "veth1", MAC: lb.MAC{2, 4}, Up: true, NoClients: true,
			Prefixes: []netip.Prefix{prefix("192.0.2.1/32")}},
		{Index: 5, Name: "eth1", MAC: lb.MAC{2, 5}, Up: false},
		{Index: 6, Name: "vlan9", MAC: lb.MAC{2, 6}, Up: true},
		{Index: 7, Name: "bond1", MAC: lb.MAC{2, 6}, Up: true, Prefixes: []netip.Prefix{prefix("198.51.100.1/24")}},
		{Index: 8, Name: "eth2", MAC: lb.MAC{2, 8}, Up: true, Port: true},
		{Index: 9, Name: "vrrp.51", MAC: lb.MAC{0, 0, 0x5e, 0, 1, 51}, Up: true},
		{Index: 10, Name: "vrrp6.51", MAC: lb.MAC{0, 0, 0x5e, 0, 2, 51}, Up: true},
	}
	want := []heartbeat.Link{
		{Name: "eth0", Index: 2, MAC: lb.MAC{2, 2}, NodePath: true},
		{Name: "bond1", Index: 7, MAC: lb.MAC{2, 6}, Fast: true},
		{Name: "vlan9", Index: 6, MAC: lb.MAC{2, 6}},
		{Name: "docker0", Index: 3, MAC: lb.MAC{2, 3}},
	}
	address := netip.MustParseAddr("192.0.2.1")
	if got := FrameLinks(s, links, address); !slices.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}

	s.L2Advertisements = nil
	if got := FrameLinks(s, links, address); len(got) > 0 {
		t.Errorf("nothing is announced by layer 2, and frames go on %v", got)
	}

	s.L2Advertisements = []lb.L2Advertisement{{Name: "all"}}
	for i := range 2 * maxFrameLinks {
		links = append(links, lb.Interface{Index: 100 + i, Name: "vlan", MAC: lb.MAC{2, 6}, Up: true})
	}
	if got := FrameLinks(s, links, address); len(got) != maxFrameLinks {
		t.Errorf("frames go on %d links, want %d at most", len(got), maxFrameLinks)
	}
}
