package bfd

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/bgp/engine"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const restartedRoute = "198.51.100.77/32"

// The order in which a speaker that restarts must end: routers keep its routes if BGP is closed first, for its graceful
// restart, and BFD says AdminDown then. FRR 8.4 takes AdminDown for a failure, against RFC 5882 section 4.2: the other
// way round it ends the session and drops the routes.
func TestFRRKeepsRoutes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		connect(t, self, ns, nstest.New(t))
		n := startNode(t)
		n.Set(only("v4"))
		f := startFRR(t, ns, frrBGPConfig)
		f.start(t, "bgpd")
		n.until("BFD is up", func() bool { return n.status("v4").State == Up })
		stop := advertise(t, n, f)
		stop()
		n.stop()
		n.until("FRR sees BFD down", func() bool { return !f.up("192.0.2.1") })
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
			if !f.has(restartedRoute) {
				t.Fatal("FRR dropped the route of a speaker that restarts")
			}
		}
	})
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

// advertise holds a session of BGP with FRR until it is stopped gracefully.
func advertise(t *testing.T, n *node, f *frr) (stop func()) {
	t.Helper()
	t.Setenv(engineEnv, "1")
	s := bgp.New(bgp.Config{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Command: []string{os.Args[0], "-test.run=^TestEngine$"}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	peer := lb.Peer{
		Name: "v4", Address: netip.MustParseAddr("192.0.2.2"), LocalASN: 65000, PeerASN: 65001,
		HoldTime: 90 * time.Second, ConnectTime: time.Second, GracefulRestart: true,
	}
	route := lb.Route{Prefix: netip.MustParsePrefix(restartedRoute), Peers: []string{"v4"}}
	if err := s.Set(bgp.Desired{RouterID: netip.MustParseAddr("192.0.2.1"), Peers: []lb.Peer{peer}, Routes: []lb.Route{route}}); err != nil {
		t.Fatal(err)
	}
	n.until("FRR has the route", func() bool { return f.has(restartedRoute) && f.up("192.0.2.1") })
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// has reports whether FRR's BGP has a route.
func (f *frr) has(prefix string) bool {
	return bytes.Contains(f.command("show bgp ipv4 unicast "+prefix), []byte("available, best"))
}
