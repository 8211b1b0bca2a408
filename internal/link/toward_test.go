package link

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// A router is heard on the links of its network and where the kernel's route to it leads, and nowhere else.
func TestToward(t *testing.T) {
	links := []lb.Interface{
		{Index: 1, Prefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}},
		{Index: 2, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8"), netip.MustParsePrefix("2001:db8::1/64")}},
		{Index: 3, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/16")}},
		{Index: 4, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")}},
		{Index: 5}, // a pod's
		{Index: 6, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.9/32")}}, // a Service's address in mode IPVS
	}
	for _, tt := range []struct {
		to     string
		direct int
		want   []int
	}{
		{"10.2.0.9", 2, []int{2}}, {"10.1.0.9", 3, []int{3, 4}}, {"2001:db8::9", 0, []int{2}},
		{"192.0.2.9", 0, nil}, {"192.0.2.9", 7, []int{7}},
	} {
		if got := Toward(links, netip.MustParseAddr(tt.to), tt.direct); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.to, got, tt.want)
		}
	}
}

// The kernel's route counts if no router is on the way.
func TestDirect(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		nstest.Veth(t, node, "eth0", nstest.New(t), "eth0")
		node.AddAddress("eth0", "192.0.2.1/32", "2001:db8::1/128")
		eth0, lo := node.Link("eth0").Attrs().Index, node.Link("lo").Attrs().Index
		node.SetUp("lo")
		node.Output("ip", "route", "add", "192.0.2.9", "dev", "eth0")
		node.Output("ip", "route", "add", "198.51.100.0/24", "via", "192.0.2.9")
		node.Output("ip", "-6", "route", "add", "2001:db8::9", "dev", "eth0")
		for to, want := range map[string]int{
			"192.0.2.9": eth0, "2001:db8::9": eth0, "198.51.100.9": 0, "203.0.113.9": 0, "192.0.2.1": lo,
		} {
			if got := Direct(netip.MustParseAddr(to), netip.Addr{}); got != want {
				t.Errorf("%s: %d, want %d", to, got, want)
			}
		}
		if got := Direct(netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.1")); got != eth0 {
			t.Errorf("from its source: %d, want %d", got, eth0)
		}
	})
}

// Any link that is not a pod's by its name or prefix leads outside.
func TestOutside(t *testing.T) {
	links := []lb.Interface{{Index: 1, Name: "lo"}, {Index: 2, Name: "eth0"}, {Index: 3, Name: "cali12"}, {Index: 4, Name: "veth7"}, {Index: 5, Name: "veth70"}}
	if got := Outside(links, []string{"cali*", "veth7"}); !slices.Equal(got, []int{1, 2, 5}) {
		t.Errorf("%v", got)
	}
}
