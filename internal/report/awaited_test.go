package report

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/bgp"
)

// TestAwaited: each speaker that starts on a node waits for the sessions of those before it until they were up once, however often it
// crashes, and for no others.
//
// Trap: a speaker that crashes before its first session is up writes that the session is down, and the next one waits for nothing.
func TestAwaited(t *testing.T) {
	up := func(peer string) bgp.Session { return bgp.Session{Peer: peer, State: bgp.Established} }
	down := func(peer string) bgp.Session { return bgp.Session{Peer: peer, State: "idle"} }
	var states = sessionStates([]bgp.Session{up("a"), up("b"), down("c")})
	planned := false
	start := func() *stateWriter {
		w := &stateWriter{planned: func() bool { return planned }}
		w.awaited.Store(new(formerPeers(states)))
		return w
	}
	expect := func(when string, w *stateWriter, sessions []bgp.Session, want ...string) {
		t.Helper()
		states = w.mark(sessionStates(sessions), sessions)
		var marked []string
		for _, s := range states {
			if s.Awaited {
				marked = append(marked, s.Peer)
			}
		}
		got, _ := (&Reporter{state: w}).Awaited()
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(got))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
		if diff := cmp.Diff(want, marked); diff != "" {
			t.Errorf("%s, in the state (-want +got):\n%s", when, diff)
		}
	}
	expect("before the plan", start(), nil, "a", "b")
	expect("it crashed", start(), nil, "a", "b")
	planned = true
	w := start()
	expect("all are down", w, []bgp.Session{down("a"), down("b"), down("c")}, "a", "b")
	expect("one is up", w, []bgp.Session{up("a"), down("b"), down("c")}, "b")
	expect("it goes down", w, []bgp.Session{down("a"), down("b"), up("c")}, "b")
	expect("it crashed again", start(), []bgp.Session{down("a"), down("b"), down("c")}, "b", "c")
	expect("all are up", start(), []bgp.Session{up("b"), up("c")})
	if _, known := (&Reporter{state: &stateWriter{}}).Awaited(); known {
		t.Error("known before the state was read")
	}
}
