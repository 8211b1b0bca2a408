package report

import (
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
	selecting := map[string]bool{"a": true, "b": true, "c": true}
	var states = sessionStates([]bgp.Session{up("a"), up("b"), down("c"), up("gone")})
	start := func() *awaited {
		w := &awaited{selecting: func() map[string]bool { return selecting }}
		w.read(states)
		return w
	}
	expect := func(when string, w *awaited, sessions []bgp.Session, want ...string) {
		t.Helper()
		got, _ := w.left(sessions)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
		states = mark(sessionStates(sessions), got)
		var marked []string
		for _, s := range states {
			if s.Awaited {
				marked = append(marked, s.Peer)
			}
		}
		if diff := cmp.Diff(want, marked); diff != "" {
			t.Errorf("%s, in the state (-want +got):\n%s", when, diff)
		}
	}
	expect("before the plan", start(), nil, "a", "b")
	expect("it crashed", start(), nil, "a", "b")
	w := start()
	expect("all are down", w, []bgp.Session{down("a"), down("b"), down("c")}, "a", "b")
	expect("one is up", w, []bgp.Session{up("a"), down("b"), down("c")}, "b")
	expect("it goes down, and another cannot be used", w, []bgp.Session{down("a"), up("c")}, "b")
	expect("it crashed again", start(), []bgp.Session{down("a"), down("b"), down("c")}, "b", "c")
	delete(selecting, "b")
	expect("one selects other nodes", start(), []bgp.Session{down("a"), down("c")}, "c")
	selecting["b"] = true
	expect("all are up", start(), []bgp.Session{up("c")})
	if _, known := (&awaited{}).left(nil); known {
		t.Error("known before the state was read")
	}
}

// TestMarkBound: no SpeakerState becomes longer than its schema allows.
func TestMarkBound(t *testing.T) {
	sessions := make([]bgp.Session, mostListed)
	if got := mark(sessionStates(sessions), []string{"r"}); len(got) != mostListed {
		t.Errorf("%d states, want %d", len(got), mostListed)
	}
}
