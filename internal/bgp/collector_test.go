package bgp

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Gauges show the present state of each peer; counters do not restart with a
// session.
func TestCollect(t *testing.T) {
	r := newRouter(t, "127.0.0.1", 65001)
	ending := newRouter(t, "127.0.0.2", 65001, func(r *router) {
		r.answer = func(conn net.Conn) {
			r.send(conn, r.open())
			r.send(conn, gobgp.NewBGPKeepAliveMessage())
			if _, err := read(conn); err == nil { // its KEEPALIVE
				r.send(conn, gobgp.NewBGPNotificationMessage(gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_ADMINISTRATIVE_RESET, nil))
			}
		}
	})
	s, _ := run(t)
	set(t, s, desire([]lb.Peer{r.peer("r", 65000), ending.peer("ending", 65000)},
		route("198.51.100.1/32", "r"), route("198.51.100.2/32", "r")))
	await(t, "table", lines("198.51.100.1/32 igp path [65000] via 127.0.0.1", "198.51.100.2/32 igp path [65000] via 127.0.0.1"), r.table)
	const want = `
# HELP holdfast_bgp_advertised_routes Routes advertised to a peer.
# TYPE holdfast_bgp_advertised_routes gauge
holdfast_bgp_advertised_routes{peer="ending"} 0
holdfast_bgp_advertised_routes{peer="r"} 2
# HELP holdfast_bgp_ignored_routes Routes that a peer sent; none is used.
# TYPE holdfast_bgp_ignored_routes gauge
holdfast_bgp_ignored_routes{peer="ending"} 0
holdfast_bgp_ignored_routes{peer="r"} 0
# HELP holdfast_bgp_notifications_sent_total NOTIFICATION messages sent to a peer.
# TYPE holdfast_bgp_notifications_sent_total counter
holdfast_bgp_notifications_sent_total{peer="ending"} 0
holdfast_bgp_notifications_sent_total{peer="r"} 0
# HELP holdfast_bgp_notifications_received_total NOTIFICATION messages received from a peer.
# TYPE holdfast_bgp_notifications_received_total counter
holdfast_bgp_notifications_received_total{peer="ending"} 2
holdfast_bgp_notifications_received_total{peer="r"} 0
# HELP holdfast_bgp_session_up Whether the session with a peer is established.
# TYPE holdfast_bgp_session_up gauge
holdfast_bgp_session_up{peer="ending"} 0
holdfast_bgp_session_up{peer="r"} 1
# HELP holdfast_bgp_updates_sent_total UPDATE messages sent to a peer.
# TYPE holdfast_bgp_updates_sent_total counter
holdfast_bgp_updates_sent_total{peer="ending"} 0
holdfast_bgp_updates_sent_total{peer="r"} 1
# HELP holdfast_repairs_total Repairs of drift, by kind.
# TYPE holdfast_repairs_total counter
holdfast_repairs_total{kind="bgp_peer"} 0
holdfast_repairs_total{kind="bgp_policy"} 0
holdfast_repairs_total{kind="bgp_route"} 0
`
	started := time.Now()
	await(t, "metrics", "", func() string {
		if state := session(s, "ending").State; state == "" {
			t.Error("the session is unknown while its peer is recreated")
		}
		if err := testutil.CollectAndCompare(s, strings.NewReader(want)); err != nil {
			return err.Error()
		}
		return ""
	})
	// Twice up and twice down: a lost session is dialled again within 2 s.
	t.Logf("second NOTIFICATION after %v", time.Since(started))
	if problems, err := testutil.CollectAndLint(s); err != nil || problems != nil {
		t.Errorf("lint: %v, %v", problems, err)
	}
	lost := session(s, "ending")
	if lost.Since.IsZero() || lost.LastError != "closed by the router: cease, administrative reset" {
		t.Errorf("session is %+v", lost)
	}
}

// A peer that is recreated never disappears from the list, and keeps its counters.
func TestRemadePeerStays(t *testing.T) {
	const lives = 20
	notes := newNotes()
	sv, err := startServer(netip.MustParseAddr("192.0.2.1"), notes, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sv.stop(false) })
	want, err := settingsOf(lb.Peer{Name: "one", Address: netip.MustParseAddr("127.0.0.9"), PeerASN: 1, LocalASN: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := sv.addPeer(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	made := make(chan error, 1)
	go func() {
		var errs []error
		for range lives {
			have, err := sv.peers()
			if err == nil && len(have) == 1 {
				have[0].State.Messages.Received.Notification = 1
				err = sv.recreate(t.Context(), have[0], want)
			}
			errs = append(errs, err)
		}
		made <- errors.Join(errs...)
	}()
	for last := uint64(0); last < lives; {
		have, err := sv.list()
		if err != nil || len(have) != 1 || have[0].past.received < last {
			t.Fatalf("%d peers, %v; %d notifications were counted before", len(have), err, last)
		}
		last = have[0].past.received
	}
	if err := <-made; err != nil {
		t.Error(err)
	}
}
