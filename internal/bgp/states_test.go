package bgp

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// states returns what States shows of the only peer.
func states(s *Speaker) string {
	var out string
	for _, session := range s.Sessions() {
		out += fmt.Sprintf("%s up %t lost %t %q", session.Peer, session.State == lb.Established, session.State != lb.Established && !session.Since.IsZero(),
			session.LastError)
	}
	return out
}

// After a kick States shows the change, without a query of GoBGP.
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
	set(t, s, desire(peers, route("198.51.100.1/32", "r")))
	await(t, "states after Set", `r up false lost false ""`, func() string { return states(s) })
	kick("the session comes up", `r up true lost false ""`)
	if live := s.Sessions(); len(live) != 1 || live[0].Advertised != 1 {
		t.Fatalf("sessions: %+v", live)
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
