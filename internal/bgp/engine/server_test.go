package engine

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/osrg/gobgp/v4/api"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// testEngine is an engine whose router never answers, with two routes.
func testEngine(t *testing.T) *engine {
	t.Helper()
	e, err := start(wire.Settings{
		Name: "r", Address: netip.MustParseAddr("127.0.0.9"), Port: 1, RouterID: netip.MustParseAddr("192.0.2.1"),
		LocalASN: 65000, PeerASN: 65001, HoldTime: 90, Keepalive: 30, Connect: 1,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.leave(wire.Leave{}); err != nil {
			t.Error(err)
		}
	})
	if err := e.change(wire.Change{Put: []lb.Route{{Prefix: first}, {Prefix: second}}}); err != nil {
		t.Fatal(err)
	}
	return e
}

var first, second = netip.MustParsePrefix("198.51.100.1/32"), netip.MustParsePrefix("198.51.100.2/32")

// holds checks what GoBGP has, and what was repaired.
func (e *engine) holds(t *testing.T, what string, repairs wire.Counters, prefixes ...netip.Prefix) {
	t.Helper()
	have, err := e.paths()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range prefixes {
		if !have[p] {
			t.Errorf("%s: GoBGP does not have %s", what, p)
		}
	}
	if len(have) != len(prefixes) || e.counters != repairs {
		t.Errorf("%s: GoBGP has %v after repairs %+v", what, have, e.counters)
	}
	if p, err := e.peer(); p == nil || err != nil {
		t.Errorf("%s: GoBGP has no peer, %v", what, err)
	}
}

// What GoBGP lost is restored and what it has too much removed, and counted.
func TestMend(t *testing.T) {
	e := testEngine(t)
	mend := func() {
		t.Helper()
		if err := e.mend(); err != nil {
			t.Fatal(err)
		}
	}
	mend()
	e.holds(t, "nothing is lost", wire.Counters{}, first, second)

	if err := e.remove([]netip.Prefix{first}); err != nil {
		t.Fatal(err)
	}
	mend()
	e.holds(t, "a route is lost", wire.Counters{RouteRepairs: 1}, first, second)

	if err := e.put([]lb.Route{{Prefix: netip.MustParsePrefix("198.51.100.3/32")}}); err != nil {
		t.Fatal(err)
	}
	mend()
	e.holds(t, "a route is too much", wire.Counters{RouteRepairs: 2}, first, second)

	e.failed = true
	mend()
	e.holds(t, "a change failed", wire.Counters{RouteRepairs: 4}, first, second)
	mend()
	e.holds(t, "and is mended once", wire.Counters{RouteRepairs: 4}, first, second)

	if err := e.gobgp.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: e.settings.Address.String()}); err != nil {
		t.Fatal(err)
	}
	mend()
	e.holds(t, "the peer is lost", wire.Counters{RouteRepairs: 4, PeerRepairs: 1}, first, second)
}

// A peer that is made again keeps its counters.
func TestRecreate(t *testing.T) {
	e := testEngine(t)
	for n := range 20 {
		p, err := e.peer()
		if err != nil || p == nil {
			t.Fatalf("peer %v, %v", p, err)
		}
		p.State.Messages.Received.Notification = 1
		if err := e.recreate(p); err != nil {
			t.Fatal(err)
		}
		if r, err := e.report(); err != nil || r.Counters.Received != uint64(n+1) || r.Session.Peer != "r" {
			t.Fatalf("after %d times: %+v, %v", n+1, r, err)
		}
	}
}
