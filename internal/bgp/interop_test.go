package bgp

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const frrConfig = `
frr defaults traditional
router bgp 65001
 bgp router-id 192.0.2.2
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 neighbor 192.0.2.1 remote-as 4200000000
 neighbor 2001:db8:1::1 remote-as 4200000000
 address-family ipv4 unicast
  neighbor 192.0.2.1 activate
 address-family ipv6 unicast
  neighbor 2001:db8:1::1 activate
`

const birdConfig = `
log stderr all;
router id 192.0.2.6;
protocol device {}
protocol kernel { ipv4 { export all; }; }
protocol kernel { ipv6 { export all; }; }
protocol bgp node4 { local 192.0.2.6 as 65000; neighbor 192.0.2.5 as 65000; ipv4 { import all; export all; }; }
protocol bgp node6 { local 2001:db8:2::2 as 65000; neighbor 2001:db8:2::1 as 65000; ipv6 { import all; export all; }; }
`

// lab is a node between two routers: FRR in its own AS, and BIRD in the node's AS.
type lab struct {
	frr                      frr
	bird                     bird
	frrKernel, birdKernel    *kernel
	frr4, frr6, bird4, bird6 lb.Peer
	// further counts the routes that kept added.
	further int
}

// newLabOf is a lab whose routers have other configurations, and FRR's bgpd other arguments.
func newLabOf(t *testing.T, frrConfig, birdConfig string, bgpd ...string) *lab {
	t.Helper()
	node, frrNS, birdNS := nstest.Self(t), nstest.New(t), nstest.New(t)
	nstest.Veth(t, node, "frr", frrNS, "eth0")
	nstest.Veth(t, node, "bird", birdNS, "eth0")
	node.AddAddress("frr", "192.0.2.1/30", "2001:db8:1::1/64")
	frrNS.AddAddress("eth0", "192.0.2.2/30", "2001:db8:1::2/64")
	node.AddAddress("bird", "192.0.2.5/30", "2001:db8:2::1/64")
	birdNS.AddAddress("eth0", "192.0.2.6/30", "2001:db8:2::2/64")
	peer := func(name, address string, localASN, peerASN uint32) lb.Peer {
		return lb.Peer{
			Name: name, Address: netip.MustParseAddr(address), Port: 179, LocalASN: localASN, PeerASN: peerASN,
			HoldTime: 9 * time.Second, ConnectTime: time.Second, GracefulRestart: true,
		}
	}
	return &lab{
		frr: startFRR(t, frrNS, frrConfig, bgpd...), bird: startBIRD(t, birdNS, birdConfig),
		frrKernel: watchKernel(t, frrNS), birdKernel: watchKernel(t, birdNS),
		frr4: peer("frr4", "192.0.2.2", 4200000000, 65001), frr6: peer("frr6", "2001:db8:1::2", 4200000000, 65001),
		bird4: peer("bird4", "192.0.2.6", 65000, 65000), bird6: peer("bird6", "2001:db8:2::2", 65000, 65000),
	}
}

func (l *lab) peers() []lb.Peer { return []lb.Peer{l.frr4, l.frr6, l.bird4, l.bird6} }

// The prefixes of the tests: one of each family for both routers, and one for each router only.
const (
	both4, both6       = "198.51.100.1/32", "2001:db8:ffff::1/128"
	forFRR, forBIRD    = "198.51.100.2/32", "198.51.100.3/32"
	frrPlain           = " path 4200000000 communities  large "
	birdPlain          = " path  communities  large  preference 100"
	viaFRR4, viaFRR6   = "via 192.0.2.1", "via 2001:db8:1::1"
	viaBIRD4, viaBIRD6 = "via 192.0.2.5", "via 2001:db8:2::1"
)

func (l *lab) routes() []lb.Route {
	return []lb.Route{
		route(both4, "bird4", "frr4"), route(both6, "bird6", "frr6"),
		route(forFRR, "frr4"), route(forBIRD, "bird4"),
	}
}

// up waits until both routers and their kernels have their routes.
func (l *lab) up(t *testing.T) {
	t.Helper()
	for _, tt := range []struct {
		router       realRouter
		kernel       *kernel
		prefix, want string
	}{
		{l.frr, l.frrKernel, both4, viaFRR4 + frrPlain},
		{l.frr, l.frrKernel, both6, viaFRR6 + frrPlain},
		{l.frr, l.frrKernel, forFRR, viaFRR4 + frrPlain},
		{l.bird, l.birdKernel, both4, viaBIRD4 + birdPlain},
		{l.bird, l.birdKernel, both6, viaBIRD6 + birdPlain},
		{l.bird, l.birdKernel, forBIRD, viaBIRD4 + birdPlain},
	} {
		await(t, "what the router knows of "+tt.prefix, tt.want, func() string { return tt.router.route(tt.prefix) })
		nstest.Until(t, patience, tt.prefix+" is in the router's kernel", func() bool { return tt.kernel.has(tt.prefix) })
	}
	if l.frr.route(forBIRD) != "" || l.bird.route(forFRR) != "" {
		t.Error("a router received a route that is not for it")
	}
}

// kept checks that no route has left the routers' kernels, when all sessions have fallen and are up again. It waits for
// each End-of-RIB: a router drops what it keeps until then if it misses a route, or if the session falls once more (RFC
// 4724 section 4.2). One more route makes sure that the kernels have what the routers decided.
func (l *lab) kept(t *testing.T, s *Speaker, d Desired, what string) {
	t.Helper()
	nstest.Until(t, patience, what+": the routers keep nothing any more", func() bool {
		return !l.frr.keeps() && !l.bird.keeps()
	})
	l.further++
	prefix, names := fmt.Sprintf("198.51.100.%d/32", 10+l.further), []string{}
	for _, p := range d.Peers {
		if p.Address.Is4() || p.DualStack {
			names = append(names, p.Name)
		}
	}
	routes := []lb.Route{route(prefix, names...)}
	for _, list := range d.Routes.All() {
		routes = append(routes, *list...)
	}
	s.Set(desire(d.Peers, routes...))
	nstest.Until(t, patience, what+": a further route arrives", func() bool {
		return l.frrKernel.has(prefix) && l.birdKernel.has(prefix)
	})
	if frr, bird := l.frrKernel.lost(both4, both6, forFRR), l.birdKernel.lost(both4, both6, forBIRD); frr != nil ||
		bird != nil {
		t.Fatalf("%s: FRR's kernel lost %v, BIRD's %v", what, frr, bird)
	}
}

// TestInterop: routes and their attributes arrive at real routers, change without a gap, and are withdrawn.
func TestInterop(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		s, _ := run(t)
		routes := l.routes()
		s.Set(desire(l.peers(), routes...))
		l.up(t)

		for i := range routes[:2] {
			routes[i].LocalPref = 250
			routes[i].Communities = []lb.Community{{A: 65000, B: 7}, {A: 65535, B: 65281}, {Large: true, A: 65000, B: 1, C: 2}}
		}
		s.Set(desire(l.peers(), routes...))
		const frrTold, birdTold = " path 4200000000 communities 65000:7 no-export large 65000:1:2",
			" path  communities (65000,7) (65535,65281) large (65000, 1, 2) preference 250"
		await(t, "FRR", viaFRR4+frrTold, func() string { return l.frr.route(both4) })
		await(t, "FRR", viaFRR6+frrTold, func() string { return l.frr.route(both6) })
		await(t, "BIRD", viaBIRD4+birdTold, func() string { return l.bird.route(both4) })
		await(t, "BIRD", viaBIRD6+birdTold, func() string { return l.bird.route(both6) })
		// BIRD itself deletes an IPv6 route before it replaces it.
		if frr, bird := l.frrKernel.lost(both4, both6), l.birdKernel.lost(both4); frr != nil || bird != nil {
			t.Errorf("a change of communities took %v out of FRR's kernel, %v out of BIRD's", frr, bird)
		}

		routes[0].Peers = []string{"frr4"}
		s.Set(desire(l.peers(), routes...))
		nstest.Until(t, patience, "the route is withdrawn from BIRD", func() bool { return !l.birdKernel.has(both4) })
		if !l.frrKernel.has(both4) || len(l.frrKernel.lost(both4)) > 0 {
			t.Error("FRR lost the route too")
		}
	})
}

// TestInteropRestart: while one speaker process replaces another, no route leaves a router's kernel.
// When the node leaves BGP all do, at once.
func TestInteropRestart(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		d := desire(l.peers(), l.routes()...)
		s, stop := run(t)
		s.Set(d)
		l.up(t)
		for _, what := range []string{"a restart", "another restart"} {
			stop()
			nstest.Until(t, patience, "the routers see the sessions end", func() bool {
				return l.frr.established() == 0 && l.bird.established() == 0
			})
			s, stop = run(t)
			s.Set(d)
			nstest.Until(t, patience, "the sessions are up again", func() bool {
				return l.frr.established() == 2 && l.bird.established() == 2
			})
			l.kept(t, s, d, what)
		}
		l.up(t)

		s.Leave()
		nstest.Until(t, 2*time.Second, "the routes are gone", func() bool {
			return !l.frrKernel.has(both4) && !l.frrKernel.has(both6) && !l.birdKernel.has(both4) && !l.birdKernel.has(both6)
		})
	})
}

// TestInteropMistakes: real routers' refusals become sentences.
func TestInteropMistakes(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		s, _ := run(t)
		l.frr4.PeerASN, l.bird4.PeerASN = 65009, 65009
		l.frr6.LocalASN, l.bird6.LocalASN = 65008, 65008
		s.Set(desire(l.peers(), l.routes()...))
		for name, want := range map[string]string{
			"frr4":  "the router's AS is 65001 and not 65009: correct peerASN, or the router's own AS",
			"bird4": "the router's AS is 65000 and not 65009: correct peerASN, or the router's own AS",
			"frr6":  refusedAS,
			"bird6": refusedAS,
		} {
			await(t, name, want, func() string { return session(s, name).LastError })
		}
	})
}

// table is the routes that FRR has from others, with their AS_PATHs, a line each.
func (f frr) table() string {
	var lines []string
	for _, family := range []string{"ipv4", "ipv6"} {
		var answer struct {
			Routes map[string][]struct {
				Path, PeerID string
			}
		}
		f.ShowJSON("show bgp "+family+" unicast", &answer)
		for prefix, paths := range answer.Routes {
			for _, p := range paths {
				if p.PeerID != "(unspec)" {
					lines = append(lines, prefix+" path "+p.Path)
				}
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// table is the routes that BIRD has by BGP.
func (b bird) table() string {
	var lines []string
	for _, line := range strings.Split(b.Show("show route where source = RTS_BGP"), "\n") {
		if prefix, rest, ok := strings.Cut(line, " "); ok && strings.Contains(rest, "[node") {
			lines = append(lines, prefix)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Routers that send their own routes, a default among them.
const (
	frrSends = " address-family ipv4 unicast\n  network 203.0.113.0/24\n  network 0.0.0.0/0\n  neighbor 192.0.2.1 " +
		"default-originate\n"
	birdSends = "protocol static { ipv4; route 0.0.0.0/0 unreachable; route 203.0.113.0/24 unreachable; }\nprotocol " +
		"static { ipv6; route ::/0 unreachable; }\n"
)

// TestInteropRoutes: a router has exactly the routes that are meant for it, with the attributes that its kind of
// session allows. Nothing that a router sends is used or passed on.
func TestInteropRoutes(t *testing.T) {
	frr := strings.Replace(frrConfig, " address-family ipv4 unicast\n", " no bgp network import-check\n"+frrSends, 1)
	inLabOf(t, frr, birdConfig+birdSends, func(t *testing.T, l *lab) {
		s, _ := run(t)
		routes := l.routes()
		for i := range routes {
			routes[i].LocalPref, routes[i].Prepend, routes[i].MED = 250, 2, lb.MED{Sent: true, Value: 77}
		}
		s.Set(desire(l.peers(), routes...))
		await(t, "FRR's table", lines(
			"198.51.100.1/32 path 4200000000 4200000000 4200000000", "198.51.100.2/32 path 4200000000 4200000000 4200000000",
			"2001:db8:ffff::1/128 path 4200000000 4200000000 4200000000",
		), l.frr.table)
		await(t, "BIRD's table", lines("198.51.100.1/32", "198.51.100.3/32", "2001:db8:ffff::1/128"), l.bird.table)
		const birdTold = "via 192.0.2.5 path  communities  large  preference 250"
		await(t, "BIRD", birdTold, func() string { return l.bird.route(both4) })
		if med := l.bird.Show("show route all for " + both4); !strings.Contains(med, "BGP.med: 77") {
			t.Errorf("BIRD has no MED 77:\n%s", med)
		}
		var frrTold struct {
			Paths []struct{ Metric uint32 }
		}
		l.frr.ShowJSON("show bgp ipv4 unicast "+both4, &frrTold)
		if len(frrTold.Paths) != 1 || frrTold.Paths[0].Metric != 77 {
			t.Errorf("FRR has %+v, want one path with MED 77", frrTold.Paths)
		}

		nstest.Until(t, patience, "both routers have sent routes", func() bool {
			return counted(s, "frr4").Ignored >= 2 && counted(s, "bird4").Ignored >= 2 && counted(s, "bird6").Ignored >= 1
		})
		before := lines(l.frr.table(), l.bird.table())

		// A Service more is one route more, and no session less.
		up := since(s)
		s.Set(desire(l.peers(), append(routes, route("198.51.100.9/32", "bird4", "frr4"))...))
		await(t, "FRR", viaFRR4+frrPlain, func() string { return l.frr.route("198.51.100.9/32") })
		await(t, "BIRD", viaBIRD4+birdPlain, func() string { return l.bird.route("198.51.100.9/32") })
		s.Set(desire(l.peers(), routes...))
		await(t, "both tables", before, func() string { return lines(l.frr.table(), l.bird.table()) })
		if diff := cmp.Diff(up, since(s)); diff != "" || len(up) != 4 {
			t.Errorf("sessions were opened again:\n%s", diff)
		}
	})
}

// TestInteropStart: a new session is dialled at once: GoBGP alone would wait for 1.5 s at least. The best of the times
// counts, because a busy machine only adds to them.
func TestInteropStart(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		times := map[string][]time.Duration{}
		for range 12 {
			s, stop := run(t)
			begin := time.Now()
			s.Set(desire(l.peers(), l.routes()...))
			up := map[string]bool{}
			nstest.Until(t, patience, "all sessions are up", func() bool {
				for _, one := range s.Sessions() {
					if one.State == lb.Established && !up[one.Peer] {
						up[one.Peer] = true
						times[one.Peer] = append(times[one.Peer], time.Since(begin).Round(time.Millisecond))
					}
				}
				return len(up) == len(l.peers())
			})
			l.up(t)
			stop()
		}
		for _, name := range slices.Sorted(maps.Keys(times)) {
			all := slices.Sorted(slices.Values(times[name]))
			t.Logf("%s is up after %v, median of %d, %v at best, %v at worst", name, all[len(all)/2], len(all), all[0],
				all[len(all)-1])
			if all[0] >= 1500*time.Millisecond {
				t.Errorf("%s is up after %v at best", name, all[0])
			}
		}
	})
}

// inLab is a test between both routers.
func inLab(t *testing.T, test func(t *testing.T, l *lab)) { inLabOf(t, frrConfig, birdConfig, test) }

// inLabOf is one whose routers have other configurations.
func inLabOf(t *testing.T, frr, bird string, test func(t *testing.T, l *lab)) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) { test(t, newLabOf(t, frr, bird)) })
}
