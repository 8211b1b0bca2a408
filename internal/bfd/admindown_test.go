package bfd

import (
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/bgp/engine"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const frrBGPConfig = `
frr defaults traditional
bfd
 profile fast
  receive-interval 120
  transmit-interval 80
  detect-multiplier 20
router bgp 65001
 bgp router-id 192.0.2.2
 no bgp ebgp-requires-policy
 neighbor 192.0.2.1 remote-as 65000
 neighbor 192.0.2.1 bfd profile fast
 neighbor 2001:db8:1::1 remote-as 65000
 neighbor 2001:db8:1::1 bfd profile fast
`

const birdBGPConfig = `
log stderr all;
router id 192.0.2.2;
protocol device {}
protocol bfd { interface "lan" { min rx interval 120 ms; min tx interval 80 ms; multiplier 20; }; }
protocol bgp node4 { local 192.0.2.2 as 65001; neighbor 192.0.2.1 as 65000; bfd on; ipv4 { import all; export none; }; }
protocol bgp node6 { local 2001:db8:1::2 as 65001; neighbor 2001:db8:1::1 as 65000; bfd on; ipv6 { import all; export none; }; }
`

const restartedRoute = "198.51.100.77/32"

// keeper is a router with a session of BGP and one of BFD with this node.
type keeper interface {
	up(address string) bool
	// has reports whether its BGP has a route.
	has(prefix string) bool
}

// TestRoutersKeepRoutes: routers keep the routes of a speaker that restarts, although its BFD ends too (RFC 5882
// section 4.3), but for BIRD, unless BFD is graceful there. If the speaker is ordered to stop, BGP is closed first, for
// its graceful restart, and BFD says AdminDown then: FRR 8.4 and BIRD 2.0 take AdminDown for a failure, against RFC
// 5882 section 4.2, and the other way round FRR ends the session and drops the routes too. If it crashes, the kernel
// closes BGP, and BFD falls silent.
func TestRoutersKeepRoutes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		keeps bool
		start func(*testing.T, *nstest.NS) keeper
	}{
		{"FRR", true, func(t *testing.T, ns *nstest.NS) keeper {
			return startFRR(t, ns, frrBGPConfig, "bgpd")
		}},
		{"BIRD", false, func(t *testing.T, ns *nstest.NS) keeper { return startBIRD(t, ns, birdBGPConfig) }},
		{"graceful BIRD", true, func(t *testing.T, ns *nstest.NS) keeper {
			return startBIRD(t, ns, strings.ReplaceAll(birdBGPConfig, "bfd on;", "bfd graceful;"))
		}},
	} {
		for end, crash := range map[string]bool{"ordered": false, "crash": true} {
			t.Run(tt.name+", "+end, func(t *testing.T) {
				nstest.Run(t, func(t *testing.T) { testKeepsRoutes(t, tt.start, crash, tt.keeps) })
			})
		}
	}
}

func testKeepsRoutes(t *testing.T, start func(*testing.T, *nstest.NS) keeper, crash, keeps bool) {
	t.Helper()
	_, ns, _ := connect(t)
	var crashed atomic.Bool
	n := startNodeThat(t, crashed.Load)
	n.Set(only("v4"))
	router := start(t, ns)
	n.until("BFD is up", func() bool { return n.status("v4").State == Up })
	stop := advertise(t, n, router)
	crashed.Store(crash)
	stop()
	if !crash {
		n.stop()
	}
	n.until("the router sees BFD down", func() bool { return !router.up("192.0.2.1") })
	if !keeps {
		n.until("the router drops the route", func() bool { return !router.has(restartedRoute) })
		return
	}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
		if !router.has(restartedRoute) {
			t.Fatal("the router dropped the route of a speaker that restarts")
		}
	}
}

const engineEnv = "HOLDFAST_BFD_ENGINE"

// TestEngine is the engine of a session of BGP, not a test.
func TestEngine(t *testing.T) {
	if os.Getenv(engineEnv) == "" {
		t.Skip("started by speakers only")
	}
	if engine.Serve() != nil {
		os.Exit(1)
	}
}

// advertise holds a session of BGP with a router until it is stopped gracefully.
func advertise(t *testing.T, n *node, router keeper) (stop func()) {
	t.Helper()
	t.Setenv(engineEnv, "1")
	s := bgp.New(bgp.Config{
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Kick: func() {},
		Command: []string{os.Args[0], "-test.run=^TestEngine$"},
	})
	stop = nstest.Running(t, s.Run)
	peer := lb.Peer{
		Name: "v4", Address: netip.MustParseAddr("192.0.2.2"), LocalASN: 65000, PeerASN: 65001,
		Port: 179, HoldTime: 90 * time.Second, KeepaliveTime: 30 * time.Second, ConnectTime: time.Second,
		GracefulRestart: true,
	}
	route := lb.Route{Prefix: netip.MustParsePrefix(restartedRoute), Peers: []string{"v4"}}
	s.Set(bgp.Desired{
		RouterID: netip.MustParseAddr("192.0.2.1"), Peers: []lb.Peer{peer},
		Routes: lb.MapOf(map[netip.Prefix]*[]lb.Route{route.Prefix: {route}}),
	})
	n.until("the router has the route", func() bool { return router.has(restartedRoute) && router.up("192.0.2.1") })
	return stop
}

func (f frr) has(prefix string) bool {
	return strings.Contains(f.Show("show bgp ipv4 unicast "+prefix), "available, best")
}

func (b bird) has(prefix string) bool {
	return strings.Contains(b.Show("show route "+prefix), prefix)
}

// TestSwitchedOff: a neighbor that says once that it switched the session off, falls silent and comes back: at no time
// is that a failure. Then a failure is one.
func TestSwitchedOff(t *testing.T) {
	w := settled(t, 16)
	off := func(d time.Duration) {
		t.Helper()
		for end := w.at + d; w.at < end; w.run(time.Millisecond) {
			if s := w.status(0); s.State != Up && !s.SwitchedOff || s.State == Up && s.SwitchedOff {
				t.Fatalf("%+v", s)
			}
		}
	}
	for _, silence := range []time.Duration{20 * time.Millisecond, 3 * time.Second, time.Minute} {
		s := w.session(0)
		w.ends[1].frozen = true
		w.run(2 * w.delay) // what is under way arrives
		s.receive(w.at, packet{state: AdminDown, diagnostic: SwitchedOff, multiplier: 3, myDiscr: s.yourDiscr,
			yourDiscr: s.myDiscr, transmit: 50 * time.Millisecond,
			receive: 50 * time.Millisecond})
		w.want(0, Down, AdminDown, Signaled)
		off(silence)
		if silence > time.Second {
			w.want(0, Down, Down, Signaled)
		}
		w.ends[1].table, w.ends[1].frozen = newTable(w.random.Uint64), false
		w.set(1)
		off(10 * time.Second)
		w.want(0, Up, Up, NoDiagnostic)
	}
	if s := w.status(0); s.Failures > 0 {
		t.Errorf("%+v", s)
	}
	w.ends[1].frozen = true
	w.until(time.Second, "it falls", w.hasState(0, Down))
	if s := w.status(0); s.Failures != 1 || s.SwitchedOff {
		t.Errorf("%+v", s)
	}
}
