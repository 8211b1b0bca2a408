package engine

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// testEngine is an engine whose router never answers, with two routes.
func testEngine(t *testing.T) *engine {
	t.Helper()
	e, err := start(wire.Settings{Peer: lb.Peer{
		Name: "r", Address: netip.MustParseAddr("127.0.0.9"), Port: 1, RouterID: netip.MustParseAddr("192.0.2.1"),
		LocalASN: 65000, PeerASN: 65001, HoldTime: 90 * time.Second, ConnectTime: time.Second,
	}}, func(text string) { t.Log(text) })
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

// holds checks what GoBGP has.
func (e *engine) holds(t *testing.T, what string, prefixes ...netip.Prefix) {
	t.Helper()
	have := map[netip.Prefix]bool{}
	for _, family := range []gobgp.Family{gobgp.RF_IPv4_UC, gobgp.RF_IPv6_UC} {
		if err := e.gobgp.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: family}, func(nlri gobgp.NLRI, paths []*apiutil.Path) {
			have[nlri.(*gobgp.IPAddrPrefix).Prefix] = len(paths) > 0
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range prefixes {
		if !have[p] {
			t.Errorf("%s: GoBGP does not have %s", what, p)
		}
	}
	if len(have) != len(prefixes) {
		t.Errorf("%s: GoBGP has %v", what, have)
	}
}

// GoBGP that lost what it was given is an error, which ends the engine; a route that was never placed may be removed.
func TestLost(t *testing.T) {
	e := testEngine(t)
	e.holds(t, "at first", first, second)
	if err := e.change(wire.Change{Remove: []netip.Prefix{first, six}}); err != nil {
		t.Error(err)
	}
	e.holds(t, "after a removal", second)
	if _, err := e.check(); err != nil {
		t.Error(err)
	}
	if err := e.gobgp.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: e.settings.Address.String()}); err != nil {
		t.Fatal(err)
	}
	if r, err := e.check(); err == nil {
		t.Errorf("without a peer it reports %+v", r)
	}
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
		if r, err := e.report(); err != nil || r.Counters.Received != uint64(n+1) {
			t.Fatalf("after %d times: %+v, %v", n+1, r, err)
		}
	}
}
