package bgp

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// states returns what States shows of the only peer.
func states(s *Speaker) string {
	var out string
	for _, session := range s.States() {
		out += fmt.Sprintf("%s up %t lost %t %q", session.Peer, session.State == Established, session.State != Established && !session.Since.IsZero(), session.LastError)
	}
	return out
}

// After a kick States shows the change, without a query of GoBGP.
func TestStates(t *testing.T) {
	r := newRouter(t, "127.0.0.1", 65001)
	kicked := make(chan struct{}, 100)
	s, stop := runWith(t, Config{RepairInterval: time.Hour, Kick: func() { kicked <- struct{}{} }})
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
	set(t, s, desire(peers, route("198.51.100.1/32", "r")))
	await(t, "states after Set", `r up false lost false ""`, func() string { return states(s) })
	kick("the session comes up", `r up true lost false ""`)
	live := s.Sessions()
	if len(live) != 1 || live[0].Advertised != 1 {
		t.Fatalf("sessions: %+v", live)
	}
	live[0].Advertised = 0
	if diff := cmp.Diff(live, s.States(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("sessions, but for the number of routes, and states differ (-sessions +states):\n%s", diff)
	}

	second := newRouter(t, "127.0.0.2", 65002)
	set(t, s, desire([]lb.Peer{second.peer("second", 65000)}))
	if got, want := states(s), `second up false lost false ""`; got != want {
		t.Errorf("states after another Set: %s, want %s", got, want)
	}
	kick("the other session comes up", `second up true lost false ""`)
	stop()
	if got := states(s); got != "" {
		t.Errorf("states after the end: %s", got)
	}
}

// Set with an unchanged desired set leaves GoBGP alone; the watch repairs periodically.
// Set with a changed one applies all of it.
func TestSetAgain(t *testing.T) {
	r := newRouter(t, "127.0.0.1", 65001)
	s, _ := runWith(t, Config{RepairInterval: time.Hour})
	peers := []lb.Peer{r.peer("r", 65000)}
	one, two := route("198.51.100.1/32", "r"), route("198.51.100.2/32", "r")
	set(t, s, desire(peers, one))
	const table = "198.51.100.1/32 igp path [65000] via 127.0.0.1"
	await(t, "table", table, r.table)

	if err := s.server.Load().deletePath(one.Prefix); err != nil {
		t.Fatal(err)
	}
	await(t, "table without the path", "", r.table)
	set(t, s, desire(peers, one))
	if paths, err := s.server.Load().paths(); err != nil || len(paths) > 0 {
		t.Errorf("GoBGP was made to hold again what it should hold already: %v, %v", paths, err)
	}
	set(t, s, desire(peers, one, two))
	await(t, "table after a change", lines(table, "198.51.100.2/32 igp path [65000] via 127.0.0.1"), r.table)

	// Failures are retried each time.
	broken := r.peer("broken", 65000)
	for range 2 {
		if err := s.Set(desire([]lb.Peer{peers[0], broken}, one)); err == nil {
			t.Error("two peers with one address are no error")
		}
	}
}
