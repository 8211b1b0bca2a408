package bgp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// states returns what States shows of the only peer.
func states(s *Speaker) string {
	var out string
	for _, session := range s.Sessions() {
		out += fmt.Sprintf("%s up %t lost %t %q", session.Peer, session.State == lb.Established,
			session.State != lb.Established && !session.Since.IsZero(),
			session.LastError)
	}
	return out
}

// TestStates: after a kick States shows the change, without a query of GoBGP.
func TestStates(t *testing.T) {
	r := newRouter(t, "127.0.0.1", 65001)
	kicked := make(chan struct{}, 100)
	s, stop := runWith(t, Config{Kick: func() { kicked <- struct{}{} }})
	if got := states(s); got != "" {
		t.Errorf("states before the first Set: %s", got)
	}
	kick := func(what, want string) {
		t.Helper()
		deadline := time.After(patience)
		for got := ""; got != want; got = states(s) {
			select {
			case <-kicked:
			case <-deadline:
				t.Fatalf("%s: no kick with %s, it is %s", what, want, states(s))
			}
		}
	}
	peers := []lb.Peer{r.peer("r", 65000)}
	s.Set(desire(peers, route("198.51.100.1/32", "r")))
	await(t, "states after Set", `r up false lost false ""`, func() string { return states(s) })
	kick("the session comes up", `r up true lost false ""`)
	if live := s.Sessions(); len(live) != 1 || live[0].Advertised != 1 {
		t.Fatalf("sessions: %+v", live)
	}

	second := newRouter(t, "127.0.0.2", 65002)
	s.Set(desire([]lb.Peer{second.peer("second", 65000)}))
	if got, want := states(s), `second up false lost false ""`; got != want {
		t.Errorf("states after another Set: %s, want %s", got, want)
	}
	kick("the other session comes up", `second up true lost false ""`)
	stop()
	if got := states(s); got != "" {
		t.Errorf("states after the end: %s", got)
	}
}

// TestCollect: gauges show the present state of each peer; counters do not restart with a
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
	s.Set(desire([]lb.Peer{r.peer("r", 65000), ending.peer("ending", 65000)},
		route("198.51.100.1/32", "r"), route("198.51.100.2/32", "r")))
	await(t, "table",
		lines("198.51.100.1/32 igp path [65000] via 127.0.0.1", "198.51.100.2/32 igp path [65000] via 127.0.0.1"), r.table)
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
	if lost.Since.IsZero() || lost.LastError != "closed by the router: NOTIFICATION 6/4 (cease, administrative reset)" {
		t.Errorf("session is %+v", lost)
	}
}

// book is a log to be read while it is written.
type book struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.Write(p)
}

// TestPasswordIsNotShown: a password is in no log of any level, in no error and in no state.
func TestPasswordIsNotShown(t *testing.T) {
	const password = "Geheim-7"
	r := newRouter(t, "127.0.0.1", 65001)
	var log book
	s, stop := runWith(t, Config{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	p := r.peer("signed", 65000)
	p.Password = password
	d := desire([]lb.Peer{p}, route("198.51.100.1/32", "signed"))
	s.Set(d)
	nstest.Until(t, patience, "the session does not come up", func() bool {
		return strings.Contains(session(s, "signed").LastError, "signature")
	})
	states, err := json.Marshal(struct {
		Desired  Desired
		Sessions []lb.Session
	}{d, s.Sessions()})
	must(t, err)
	one := settingsOf(p, d.RouterID)
	settings := fmt.Sprintf("%v %+v %#v", one, one, one)
	stop()
	if text := string(states) + settings + log.out.String(); strings.Contains(text, password) || log.out.Len() == 0 {
		t.Errorf("the password is in\n%s", text)
	}
}
