package link

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

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
		if diff := cmp.Diff([]Neighbour{{Address: v4}, {Address: v6}}, Gateways(eth0), same); diff != "" {
			t.Errorf("before anything was sent (-want +got):\n%s", diff)
		}
		mac := MACFrom(router.MAC("eth0"))
		for _, addr := range []netip.Addr{v4, v6} {
			if err := node.Netlink().NeighSet(&netlink.Neigh{
				LinkIndex: eth0, IP: addr.AsSlice(), HardwareAddr: mac.HardwareAddr(), State: netlink.NUD_STALE,
			}); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff([]Neighbour{{v4, mac}, {v6, mac}}, Gateways(eth0), same); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if got := Gateways(eth1); got != nil {
			t.Errorf("of a link without default route: %v", got)
		}
	})
}
