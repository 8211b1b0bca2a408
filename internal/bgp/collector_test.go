package bgp

import (
	"io"
	"net"
	"strings"
	"sync/atomic"
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
	var sessions atomic.Int32
	ending := newRouter(t, "127.0.0.2", 65001, func(r *router) {
		r.answer = func(conn net.Conn) {
			if sessions.Add(1) > 2 { // it is silent
				_, _ = io.Copy(io.Discard, conn)
				return
			}
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
# HELP holdfast_bgp_engine_restarts_total Deaths of the BGP engine of a peer.
# TYPE holdfast_bgp_engine_restarts_total counter
holdfast_bgp_engine_restarts_total{peer="ending"} 0
holdfast_bgp_engine_restarts_total{peer="r"} 0
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
# HELP holdfast_bgp_session_damped Whether a peer waits to be dialled, because its session fell or its engine died too often.
# TYPE holdfast_bgp_session_damped gauge
holdfast_bgp_session_damped{peer="ending"} 0
holdfast_bgp_session_damped{peer="r"} 0
# HELP holdfast_bgp_session_failures_total Times that the session with a peer fell, unless this node closed it on purpose.
# TYPE holdfast_bgp_session_failures_total counter
holdfast_bgp_session_failures_total{peer="ending"} 2
holdfast_bgp_session_failures_total{peer="r"} 0
# HELP holdfast_bgp_session_up Whether the session with a peer is established.
# TYPE holdfast_bgp_session_up gauge
holdfast_bgp_session_up{peer="ending"} 0
holdfast_bgp_session_up{peer="r"} 1
# HELP holdfast_bgp_session_ups_total Times that the session with a peer came up.
# TYPE holdfast_bgp_session_ups_total counter
holdfast_bgp_session_ups_total{peer="ending"} 2
holdfast_bgp_session_ups_total{peer="r"} 1
# HELP holdfast_bgp_updates_sent_total UPDATE messages sent to a peer.
# TYPE holdfast_bgp_updates_sent_total counter
holdfast_bgp_updates_sent_total{peer="ending"} 0
holdfast_bgp_updates_sent_total{peer="r"} 1
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
	// Twice up and twice down: a lost session is dialled again at once.
	t.Logf("second NOTIFICATION after %v", time.Since(started))
	if problems, err := testutil.CollectAndLint(s); err != nil || problems != nil {
		t.Errorf("lint: %v, %v", problems, err)
	}
	lost := session(s, "ending")
	if lost.Since.IsZero() || lost.LastError != "closed by the router: cease, administrative reset" {
		t.Errorf("session is %+v", lost)
	}
}
