package bgp

import (
	"net/netip"
	"strings"
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

// farBIRD has the protocol's options in it; OPTIONS is for those of the distance.
const farBIRD = `
log stderr all;
router id 192.0.2.10;
protocol device {}
protocol static { ipv4; route 192.0.2.0/30 via 192.0.2.9; }
protocol static { ipv6; route 2001:db8:1::/64 via 2001:db8:3::1; }
protocol bgp far4 { local 192.0.2.10 as 65001; neighbor 192.0.2.1 as 65000; OPTIONS; error wait time 1,1; ipv4 { import all; export none; }; }
protocol bgp far6 { local 2001:db8:3::2 as 65001; neighbor 2001:db8:1::1 as 65000; OPTIONS; error wait time 1,1; ipv6 { import all; export none; }; }
`

// A router behind another one is reached by multihop only, or by TTL security for so many hops: not by a BIRD that sends with TTL 64.
// The timers are as configured.
func TestInteropMultiHop(t *testing.T) {
	for _, tt := range []struct {
		name, told string
		start      func(*testing.T, *nstest.NS) (router realRouter, secure, open func())
	}{
		{"FRR", " path 65000 communities  large ", func(t *testing.T, ns *nstest.NS) (realRouter, func(), func()) {
			f := startFRR(t, ns, farConfig)
			return f, func() {
				f.Configure("router bgp 65001", "no neighbor 192.0.2.1 ebgp-multihop", "no neighbor 2001:db8:1::1 ebgp-multihop",
					"neighbor 192.0.2.1 ttl-security hops 2", "neighbor 2001:db8:1::1 ttl-security hops 2")
			}, nil
		}},
		{"BIRD", " path 65000 communities  large  preference 100", func(t *testing.T, ns *nstest.NS) (realRouter, func(), func()) {
			options := func(text string) string { return strings.ReplaceAll(farBIRD, "OPTIONS", text) }
			b := startBIRD(t, ns, options("multihop"))
			return b, func() { b.Configure(options("multihop 2; ttl security on")) }, func() { b.Configure(options("multihop")) }
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			nstest.Run(t, func(t *testing.T) {
				router, secure, open := tt.start(t, behind(t))
				testMultiHop(t, router, secure, open, tt.told)
			})
		})
	}
}

func testMultiHop(t *testing.T, router realRouter, secure, open func(), told string) {
	t.Helper()
	names := []string{"far4", "far6"}
	s, _ := run(t)
	dial := func(multiHop bool, minTTL uint8) {
		t.Helper()
		var peers []lb.Peer
		for i, address := range []string{"192.0.2.10", "2001:db8:3::2"} {
			peers = append(peers, lb.Peer{
				Name: names[i], Address: netip.MustParseAddr(address), Port: 179, LocalASN: 65000, PeerASN: 65001,
				HoldTime: 6 * time.Second, KeepaliveTime: time.Second, ConnectTime: time.Second, MultiHop: multiHop, MinTTL: minTTL,
			})
		}
		set(t, s, desire(peers, route(both4, "far4"), route(both6, "far6")))
	}
	arrive := func(what string) {
		t.Helper()
		await(t, what, viaFRR4+told, func() string { return router.route(both4) })
		await(t, what, viaFRR6+told, func() string { return router.route(both6) })
		established(t, s, names...)
		for _, p := range s.Sessions() {
			if p.HoldTime != 6 || p.Keepalive != 1 {
				t.Errorf("%s: hold time %d, keepalive %d", p.Peer, p.HoldTime, p.Keepalive)
			}
		}
	}
	fails := func(what, why string) {
		t.Helper()
		for _, name := range names {
			await(t, name+what, why, func() string { return session(s, name).LastError })
		}
	}
	dial(false, 0)
	fails(" without multihop", "cannot connect: no route to host")
	dial(true, 0)
	arrive("multihop")
	secure()
	dial(false, 254)
	arrive("TTL security")
	if open != nil {
		open()
		for _, name := range names {
			nstest.Until(t, patience, name+" ends", func() bool { return session(s, name).State != lb.Established })
		}
		changed := time.Now()
		nstest.Until(t, patience, "twice the time has passed that a session needs to come up", func() bool {
			for _, name := range names {
				if session(s, name).State == lb.Established {
					t.Fatalf("%s is up with a router that sends with TTL 64", name)
				}
			}
			return time.Since(changed) > 6*time.Second
		})
		secure()
	}
	dial(false, 255) // one hop, and it is two away
	fails(" beyond its hops", "cannot connect: i/o timeout")
}

// behind returns a namespace behind a router, that of the addresses 192.0.2.10 and 2001:db8:3::2.
func behind(t *testing.T) *nstest.NS {
	t.Helper()
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
	return far
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
