package bgp

import (
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

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

// farBIRD has the protocol's options in it; OPTIONS is for the options of the distance.
const farBIRD = `
log stderr all;
router id 192.0.2.10;
protocol device {}
protocol static { ipv4; route 192.0.2.0/30 via 192.0.2.9; }
protocol static { ipv6; route 2001:db8:1::/64 via 2001:db8:3::1; }
protocol bgp far4 { local 192.0.2.10 as 65001; neighbor 192.0.2.1 as 65000; OPTIONS; error wait time 1,1; ipv4 { import all; export none; }; }
protocol bgp far6 { local 2001:db8:3::2 as 65001; neighbor 2001:db8:1::1 as 65000; OPTIONS; error wait time 1,1; ipv6 { import all; export none; }; }
`

// TestInteropMultiHop: a router behind another one is reached by multihop only, or by TTL security for so many hops:
// not by a BIRD that sends with TTL 64. The timers are as configured.
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
		{"BIRD", " path 65000 communities  large  preference 100", func(
			t *testing.T,
			ns *nstest.NS,
		) (realRouter, func(), func()) {
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
		s.Set(desire(peers, route(both4, "far4"), route(both6, "far6")))
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

// behind returns a namespace behind a router with the addresses 192.0.2.10 and 2001:db8:3::2.
func behind(t *testing.T) *nstest.NS {
	t.Helper()
	node := nstest.Self(t)
	between := node.Attach("eth0", []string{"192.0.2.1/30", "2001:db8:1::1/64"}, "192.0.2.2/30", "2001:db8:1::2/64")
	node.AddDefault("192.0.2.2", "2001:db8:1::2")
	between.Sysctl("ipv4/ip_forward", "1")
	between.Sysctl("ipv6/conf/all/forwarding", "1")
	return between.Attach("eth1", []string{"192.0.2.9/30", "2001:db8:3::1/64"}, "192.0.2.10/30", "2001:db8:3::2/64")
}

// TestInteropPort: routers on another port are dialed there. Port 179 of the node may be another daemon's, which does
// not know these routers: nothing here listens, and what they dial disturbs nothing.
func TestInteropPort(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		dialed := make(chan struct{}, 1)
		nstest.Self(t).Serve(":179", func(net.Conn) {
			select {
			case dialed <- struct{}{}:
			default:
			}
		})
		l := newLabOf(t, frrConfig, strings.ReplaceAll(birdConfig, " as 65000; neighbor",
			" port 1179 as 65000; connect delay time 1; neighbor"), "-p", "1179")
		s, _ := run(t)
		s.Set(desire([]lb.Peer{l.frr4}))
		await(t, "the session on the usual port", "cannot connect: connection refused", func() string {
			return session(s, "frr4").LastError
		})
		for _, p := range []*lb.Peer{&l.frr4, &l.frr6, &l.bird4, &l.bird6} {
			p.Port = 1179
		}
		select {
		case <-dialed:
		case <-time.After(patience):
			t.Fatal("no router dialed")
		}
		s.Set(desire(l.peers(), l.routes()...))
		l.up(t)
		if got := session(s, "frr4"); got.State != lb.Established {
			t.Errorf("%+v", got)
		}
	})
}

// nodeBIRD is another BGP daemon on the node, which listens on port 179 and has a session with FRR from the node's
// address.
const nodeBIRD = `
log stderr all;
router id 192.0.2.1;
protocol device {}
protocol static { ipv4; route 203.0.113.0/24 unreachable; }
protocol bgp frr { local 192.0.2.1 as 4200000000; neighbor 192.0.2.2 as 65001; connect retry time 1;
  error wait time 1,1; connect delay time 1; ipv4 { import none; export all; }; }
`

const viaNodeBIRD = "via 192.0.2.1 path 4200000000 communities  large "

// routerBIRD is a router for which any number of daemons on a node dial from one address.
const routerBIRD = `
log stderr all;
router id 192.0.2.2;
protocol device {}
protocol kernel { ipv4 { export all; }; }
protocol bgp node { local 192.0.2.2 as 65001; neighbor 192.0.2.1 as 4200000000; passive; ipv4 { import all; export none; }; }
protocol bgp second { local 192.0.2.2 as 65001; neighbor 192.0.2.9 as 4200000000; passive; ipv4 { import all; export none; }; }
`

// TestInteropLocalDaemon: a router takes one session from an address: the engine does not dial while the node's BIRD
// has it, which is not disturbed. From another address of the node both work (metallb#114).
func TestInteropLocalDaemon(t *testing.T) {
	for _, tt := range []struct {
		name, suffix string
		start        func(*testing.T, *nstest.NS) realRouter
	}{
		{"FRR", "", func(t *testing.T, ns *nstest.NS) realRouter {
			f := startFRR(t, ns, frrConfig)
			f.Configure("router bgp 65001", "neighbor 192.0.2.9 remote-as 4200000000", "address-family ipv4 unicast",
				"neighbor 192.0.2.9 activate")
			return f
		}},
		{"BIRD", " preference 100", func(t *testing.T, ns *nstest.NS) realRouter { return startBIRD(t, ns, routerBIRD) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			nstest.Run(t, func(t *testing.T) {
				node, ns := nstest.Self(t), nstest.New(t)
				nstest.Veth(t, node, "eth0", ns, "eth0")
				node.AddAddress("eth0", "192.0.2.1/24", "192.0.2.9/24")
				ns.AddAddress("eth0", "192.0.2.2/24")
				router := tt.start(t, ns)
				local := startBIRD(t, node, nodeBIRD)
				viaNode := viaNodeBIRD + tt.suffix
				await(t, "the route of the node's BIRD", viaNode, func() string { return router.route("203.0.113.0/24") })
				kernel := watchKernel(t, ns)
				nstest.Until(t, patience, "it is in the router's kernel", func() bool { return kernel.has("203.0.113.0/24") })
				peer := lb.Peer{
					Name: "router", Address: netip.MustParseAddr("192.0.2.2"), Port: 179, LocalASN: 4200000000, PeerASN: 65001,
					HoldTime:    9 * time.Second,
					ConnectTime: time.Second, GracefulRestart: true,
				}
				s, _ := run(t)
				s.Set(desire([]lb.Peer{peer}, route(both4, "router")))
				await(t, "the second session from one address", occupied("192.0.2.1"), func() string {
					return session(s, "router").LastError
				})

				peer.SourceAddress = netip.MustParseAddr("192.0.2.9")
				s.Set(desire([]lb.Peer{peer}, route(both4, "router")))
				await(t, "our route from another address", strings.Replace(viaNode, "192.0.2.1", "192.0.2.9", 1), func() string {
					return router.route(both4)
				})
				if got := router.route("203.0.113.0/24"); got != viaNode || local.established() != 1 ||
					kernel.lost("203.0.113.0/24") != nil {
					t.Errorf("the node's BIRD lost its session: %q, lost %v", got, kernel.lost("203.0.113.0/24"))
				}
			})
		})
	}
}

// TestInteropRestartNextHop: IPv4 routes with an IPv6 next hop stay in the kernels of both routers, as the IPv6 routes
// do, when the speaker is killed and another one starts, when the engines are killed, and when the peers are edited.
// Only the router's OPEN says that it takes such next hops, so the End-of-RIB must wait for it.
func TestInteropRestartNextHop(t *testing.T) {
	inLabOf(t, first(dual()), second(dual()), func(t *testing.T, l *lab) {
		l.frr6.SourceAddress = netip.MustParseAddr("2001:db8:1::1") // see TestInteropDualStack
		l.restartNextHop(t)
	})
}

// TestInteropRestartLinkLocal: the same between link-local addresses, as with unnumbered peers.
func TestInteropRestartLinkLocal(t *testing.T) {
	frr, bird := dual()
	frr = strings.ReplaceAll(frr, "2001:db8:1::1", "fe80::1")
	frr = strings.Replace(frr, " address-family ipv4", " neighbor fe80::1 interface eth0\n address-family ipv4", 1)
	bird = strings.Replace(bird, "local 2001:db8:2::2 as 65000; neighbor 2001:db8:2::1",
		"local as 65000; direct; neighbor fe80::1%eth0", 1)
	inLabOf(t, frr, bird, func(t *testing.T, l *lab) {
		for link, p := range map[string]*lb.Peer{"frr": &l.frr6, "bird": &l.bird6} {
			nstest.Self(t).AddAddress(link, "fe80::1/64")
			p.Address, p.SourceAddress = netip.MustParseAddr("fe80::2%"+link), netip.MustParseAddr("fe80::1%"+link)
		}
		l.frr.NS.AddAddress("eth0", "fe80::2/64")
		l.bird.NS.AddAddress("eth0", "fe80::2/64")
		l.restartNextHop(t)
	})
}

// nextHopIPv6 takes the node's IPv4 addresses away, and returns peers whose IPv4 routes have an IPv6 next hop.
func (l *lab) nextHopIPv6(t *testing.T) (peers []lb.Peer, names []string) {
	t.Helper()
	node := nstest.Self(t)
	for _, link := range []string{"frr", "bird"} {
		for _, a := range addressesOf(t, node, link) {
			must(t, node.Netlink().AddrDel(node.Link(link), &a))
		}
	}
	l.frr6.DualStack, l.bird6.DualStack = true, true
	return []lb.Peer{l.bird6, l.frr6}, []string{"bird6", "frr6"}
}

func (l *lab) restartNextHop(t *testing.T) {
	t.Helper()
	peers, names := l.nextHopIPv6(t)
	routes := []lb.Route{route(both4, names...), route(both6, names...)}
	cmd := startSpeaker(t, peers, routes...)
	for _, prefix := range []string{both4, both6} {
		nstest.Until(t, patience, prefix+" arrives", func() bool {
			return l.frrKernel.has(prefix) && l.birdKernel.has(prefix)
		})
	}
	must(t, cmd.Process.Kill())
	nstest.Until(t, patience, "the routers see the sessions end", func() bool {
		return l.frr.established() == 0 && l.bird.established() == 0
	})

	s, _ := run(t)
	d := desire(peers, routes...)
	s.Set(d)
	established(t, s, names...)
	l.kept(t, s, d, "another speaker")

	for _, name := range names {
		strike(t, s, name, syscall.SIGKILL, 0)
	}
	established(t, s, names...)
	l.kept(t, s, d, "other engines")

	before := since(s)
	for i := range peers {
		peers[i].HoldTime = 12 * time.Second
	}
	d = desire(peers, routes...)
	s.Set(d)
	for _, name := range names {
		nstest.Until(t, patience, name+" is opened again", func() bool {
			got := session(s, name)
			return got.State == lb.Established && got.Since.After(before[name])
		})
	}
	l.kept(t, s, d, "edited peers")
}

// TestInteropFallsTwice: a router drops what it kept if the session falls again before the End-of-RIB (RFC 4724 section
// 4.2), and has it again then.
func TestInteropFallsTwice(t *testing.T) {
	inLabOf(t, first(dual()), second(dual()), func(t *testing.T, l *lab) {
		l.frr6.SourceAddress = netip.MustParseAddr("2001:db8:1::1") // see TestInteropDualStack
		peers, names := l.nextHopIPv6(t)
		routes := []lb.Route{route(both4, names...), route(both6, names...)}
		s, _ := run(t)
		arrive := func() {
			for _, prefix := range []string{both4, both6} {
				nstest.Until(t, patience, prefix+" arrives", func() bool {
					return l.frrKernel.has(prefix) && l.birdKernel.has(prefix)
				})
			}
		}
		s.Set(desire(peers, routes...))
		arrive()
		// twice, if this machine is not slow
		for edits := 0; l.birdKernel.lost(both4) == nil || l.birdKernel.lost(both6) == nil; edits++ {
			if edits == 10 {
				t.Fatal("BIRD keeps the routes of a session that falls again and again")
			}
			before := session(s, "bird6").Since
			peers[0].HoldTime += time.Second
			s.Set(desire(peers, routes...))
			nstest.Until(t, patience, "the session is opened again", func() bool {
				got := session(s, "bird6")
				return got.State == lb.Established && got.Since.After(before)
			})
		}
		arrive()
		if frr := l.frrKernel.lost(both4, both6); frr != nil {
			t.Errorf("FRR, whose session stayed, lost %v", frr)
		}
	})
}
