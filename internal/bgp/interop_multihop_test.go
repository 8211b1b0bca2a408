package bgp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const farConfig = `
frr defaults traditional
router bgp 65001
 bgp router-id 192.0.2.10
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 neighbor 192.0.2.1 remote-as 65000
 neighbor 192.0.2.1 ebgp-multihop
 neighbor 2001:db8:1::1 remote-as 65000
 neighbor 2001:db8:1::1 ebgp-multihop
 address-family ipv4 unicast
  neighbor 192.0.2.1 activate
 address-family ipv6 unicast
  neighbor 2001:db8:1::1 activate
`

// A router behind another one is reached by multihop only, or by TTL security for so many hops. The timers are as
// configured.
func TestInteropMultiHop(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, between, far := nstest.Self(t), nstest.New(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", between, "eth0")
		nstest.Veth(t, between, "eth1", far, "eth0")
		node.AddAddress("eth0", "192.0.2.1/30", "2001:db8:1::1/64")
		between.AddAddress("eth0", "192.0.2.2/30", "2001:db8:1::2/64")
		between.AddAddress("eth1", "192.0.2.9/30", "2001:db8:3::1/64")
		far.AddAddress("eth0", "192.0.2.10/30", "2001:db8:3::2/64")
		gateway(t, node, "192.0.2.2", "2001:db8:1::2")
		gateway(t, far, "192.0.2.9", "2001:db8:3::1")
		forward := "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"
		if out, err := between.Command("sh", "-c", forward).CombinedOutput(); err != nil {
			t.Fatalf("forward: %v\n%s", err, out)
		}
		router := startFRR(t, far, farConfig)
		peers := []lb.Peer{
			{Name: "far4", Address: netip.MustParseAddr("192.0.2.10"), LocalASN: 65000, PeerASN: 65001},
			{Name: "far6", Address: netip.MustParseAddr("2001:db8:3::2"), LocalASN: 65000, PeerASN: 65001},
		}
		routes := []lb.Route{route(both4, "far4"), route(both6, "far6")}
		s, _ := run(t)
		for i := range peers {
			peers[i].HoldTime, peers[i].KeepaliveTime, peers[i].ConnectTime = 12*time.Second, 2*time.Second, time.Second
		}
		set(t, s, desire(peers, routes...))
		for _, p := range peers {
			await(t, p.Name+" without multihop", "cannot connect: no route to host", func() string { return session(s, p.Name).LastError })
		}

		for i := range peers {
			peers[i].MultiHop = true
		}
		set(t, s, desire(peers, routes...))
		await(t, "FRR", viaFRR4+" path 65000 communities  large ", func() string { return router.route(both4) })
		await(t, "FRR", viaFRR6+" path 65000 communities  large ", func() string { return router.route(both6) })
		for _, address := range []string{"192.0.2.1", "2001:db8:1::1"} {
			var told map[string]struct {
				HoldTime int `json:"bgpTimerHoldTimeMsecs"`
			}
			if router.show("show bgp neighbors "+address, &told); told[address].HoldTime != 12000 {
				t.Errorf("FRR's hold time with %s is %d ms", address, told[address].HoldTime)
			}
		}
		for _, p := range s.Sessions() {
			if p.HoldTime != 12 || p.Keepalive != 2 {
				t.Errorf("%s: hold time %d, keepalive %d", p.Peer, p.HoldTime, p.Keepalive)
			}
		}

		router.configure(t, "router bgp 65001", "no neighbor 192.0.2.1 ebgp-multihop", "no neighbor 2001:db8:1::1 ebgp-multihop",
			"neighbor 192.0.2.1 ttl-security hops 2", "neighbor 2001:db8:1::1 ttl-security hops 2")
		for i := range peers {
			peers[i].MultiHop, peers[i].MinTTL = false, 254
		}
		set(t, s, desire(peers, routes...))
		await(t, "FRR by TTL security", viaFRR4+" path 65000 communities  large ", func() string { return router.route(both4) })
		await(t, "FRR by TTL security", viaFRR6+" path 65000 communities  large ", func() string { return router.route(both6) })

		for i := range peers {
			peers[i].MinTTL = 255 // one hop, and it is two away
		}
		set(t, s, desire(peers, routes...))
		for _, p := range peers {
			await(t, p.Name+" beyond its hops", "cannot connect: i/o timeout", func() string { return session(s, p.Name).LastError })
		}
	})
}

// gateway adds default routes.
func gateway(t *testing.T, n *nstest.NS, gateways ...string) {
	t.Helper()
	for _, g := range gateways {
		if err := n.Netlink().RouteAdd(&netlink.Route{LinkIndex: n.Link("eth0").Attrs().Index, Gw: netip.MustParseAddr(g).AsSlice()}); err != nil {
			t.Fatalf("route by %s: %v", g, err)
		}
	}
}
