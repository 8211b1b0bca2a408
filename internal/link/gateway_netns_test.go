package link

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestNeighbours: machines that answered lately and whose addresses are wanted, on links that announce.
func TestNeighbours(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", far, "eth0")
		nstest.Veth(t, node, "veth1", far, "pod")
		node.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64")
		node.AddAddress("veth1", "198.51.100.1/24")
		far.AddAddress("eth0", "192.0.2.9/24", "192.0.2.10/24", "2001:db8::9/64")
		far.AddAddress("pod", "198.51.100.9/24")
		m, _ := running(t)
		start(t, m)
		nstest.Until(t, within, "both links", func() bool { return find(m, "eth0").Usable() && find(m, "veth1").NoClients })
		unwanted := netip.MustParseAddr("192.0.2.10")
		neighbours := func() []lb.Neighbour {
			list, err := Neighbours(m.Links(), func(a netip.Addr) bool { return a != unwanted && !a.IsLinkLocalUnicast() })
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		silent := netip.MustParseAddr("192.0.2.77")
		if err := node.Netlink().NeighSet(&netlink.Neigh{LinkIndex: node.Link("eth0").Attrs().Index, IP: silent.AsSlice(),
			State: netlink.NUD_INCOMPLETE}); err != nil {
			t.Fatal(err)
		}
		if got := neighbours(); len(got) > 0 {
			t.Errorf("before anybody answered: %v", got)
		}
		for _, a := range []string{"192.0.2.9", "192.0.2.10", "2001:db8::9", "198.51.100.9"} {
			node.Output("ping", "-c", "1", "-W", "5", a)
		}
		mac := lb.MACFrom(far.MAC("eth0"))
		want := []lb.Neighbour{{Address: netip.MustParseAddr("192.0.2.9"), MAC: mac}, {Address: netip.MustParseAddr("2001:db8::9"), MAC: mac}}
		if got := neighbours(); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// TestAnswered: an entry of the neighbour table counts for ten minutes after the last answer.
func TestAnswered(t *testing.T) {
	minutes := func(n uint32) uint32 { return n * 60 * 100 }
	for _, tt := range []struct {
		state     int
		confirmed uint32
		want      bool
	}{
		{netlink.NUD_REACHABLE, 0, true},
		{netlink.NUD_STALE, minutes(9), true},
		{netlink.NUD_STALE, minutes(10), false},
		{netlink.NUD_FAILED, 0, false},
		{netlink.NUD_INCOMPLETE, 0, false},
		{netlink.NUD_PERMANENT, minutes(99), true},
		{netlink.NUD_NOARP, 0, false},
	} {
		if got := answered(netlink.Neigh{State: tt.state, Confirmed: tt.confirmed}); got != tt.want {
			t.Errorf("state %#x, confirmed %d ticks ago: %v, want %v", tt.state, tt.confirmed, got, tt.want)
		}
	}
}

// TestGateways: the router of each family with its MAC once the kernel knows it, and
// none where a link has no default route.
func TestGateways(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, router := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", router, "eth0")
		nstest.Veth(t, node, "eth1", router, "eth1")
		node.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")
		router.AddAddress("eth0", "192.0.2.254/24", "2001:db8::fe/64", "fe80::fe/64")
		node.Output("ip", "route", "add", "default", "via", "192.0.2.254")
		node.Output("ip", "-6", "route", "add", "default", "via", "fe80::fe", "dev", "eth0")
		eth0, eth1 := node.Link("eth0").Attrs().Index, node.Link("eth1").Attrs().Index
		v4, v6 := netip.MustParseAddr("192.0.2.254"), netip.MustParseAddr("fe80::fe")
		same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
		if diff := cmp.Diff([]lb.Neighbour{{Address: v4}, {Address: v6}}, Gateways(eth0), same); diff != "" {
			t.Errorf("before anything was sent (-want +got):\n%s", diff)
		}
		mac := lb.MACFrom(router.MAC("eth0"))
		for _, addr := range []netip.Addr{v4, v6} {
			if err := node.Netlink().NeighSet(&netlink.Neigh{
				LinkIndex: eth0, IP: addr.AsSlice(), HardwareAddr: mac.HardwareAddr(), State: netlink.NUD_STALE,
			}); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff([]lb.Neighbour{{Address: v4, MAC: mac}, {Address: v6, MAC: mac}}, Gateways(eth0), same); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if got := Gateways(eth1); got != nil {
			t.Errorf("of a link without default route: %v", got)
		}
	})
}
