package main

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/apitest"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestSessionStates: what the SpeakerState says of a session, and nothing of one that is not up that only holds while it is.
func TestSessionStates(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	at := new(v1beta1.NewTime(since))
	full := lb.Session{
		Peer: "r", State: lb.Established, Since: since, LastError: "old", Withheld: "no IPv6", BFD: "up", Advertised: 7,
		Capabilities: []string{"4-byte AS"}, HoldTime: 90, Keepalive: 30,
	}
	down := full
	down.State, down.LastError = "active", "cannot connect:\x1b[31m refused"
	for _, tt := range []struct {
		name string
		is   lb.Session
		want v1beta1.SessionState
	}{
		{"up", full, v1beta1.SessionState{Peer: "r", State: "established", Since: at, Withheld: "no IPv6", AdvertisedRoutes: 7, BFD: "up",
			Capabilities: []string{"4-byte AS"}, HoldSeconds: 90, KeepaliveSeconds: 30}},
		{"down", down, v1beta1.SessionState{Peer: "r", State: "down", Since: at, LastError: "cannot connect: [31m refused", BFD: "up"}},
		{"never up", lb.Session{Peer: "r", State: "connect"}, v1beta1.SessionState{Peer: "r", State: "down"}},
	} {
		if diff := cmp.Diff([]v1beta1.SessionState{tt.want}, sessionStates([]lb.Session{tt.is})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestSessionStatesAreAdmitted: whatever the sessions say, and however many there are, the API server takes it.
func TestSessionStatesAreAdmitted(t *testing.T) {
	var sessions []lb.Session
	for i := range 2 * maxListed {
		s := lb.Session{Peer: fmt.Sprintf("r%d", i), State: lb.Established, Since: time.Now(), HoldTime: 1 << 40, Keepalive: 1 << 40, Advertised: 1 << 40,
			Withheld: strings.Repeat("ü\n", 1000), Capabilities: strings.Split(strings.Repeat(strings.Repeat("x", 100)+" ", 100), " ")}
		if i%2 == 0 {
			s = lb.Session{Peer: s.Peer, State: "active", LastError: strings.Repeat("\xff", 10_000), BFD: "down"}
		}
		sessions = append(sessions, s)
	}
	out := mark(sessionStates(sessions), []string{"awaited"})
	if len(out) != maxListed {
		t.Errorf("%d sessions", len(out))
	}
	state := map[string]any{"apiVersion": v1beta1.GroupVersion.String(), "kind": "SpeakerState", "metadata": map[string]any{"name": "w1"}}
	if _, err := apitest.Patched(t, state, map[string]any{"status": map[string]any{"sessions": out}}); err != nil {
		t.Error(err)
	}
}

// TestAwaited: each speaker that starts on a node waits for the sessions of those before it until they were up once, however often it
// crashes, and for no others.
//
// Trap: a speaker that crashes before its first session is up writes that the session is down, and the next one waits for nothing.
func TestAwaited(t *testing.T) {
	up := func(peer string) lb.Session { return lb.Session{Peer: peer, State: lb.Established} }
	down := func(peer string) lb.Session { return lb.Session{Peer: peer, State: "idle"} }
	selecting := map[string]bool{"a": true, "b": true, "c": true}
	var states = sessionStates([]lb.Session{up("a"), up("b"), down("c"), up("gone")})
	start := func() *awaited {
		w := &awaited{selecting: func() map[string]bool { return selecting }}
		w.read(states)
		return w
	}
	expect := func(when string, w *awaited, sessions []lb.Session, want ...string) {
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
	expect("all are down", w, []lb.Session{down("a"), down("b"), down("c")}, "a", "b")
	expect("one is up", w, []lb.Session{up("a"), down("b"), down("c")}, "b")
	expect("it goes down, and another cannot be used", w, []lb.Session{down("a"), up("c")}, "b")
	expect("it crashed again", start(), []lb.Session{down("a"), down("b"), down("c")}, "b", "c")
	delete(selecting, "b")
	expect("one selects other nodes", start(), []lb.Session{down("a"), down("c")}, "c")
	selecting["b"] = true
	expect("all are up", start(), []lb.Session{up("c")})
	if _, known := (&awaited{}).left(nil); known {
		t.Error("known before the state was read")
	}
}

// TestSessionGate: sessions that are awaited hold readiness until they are up or the operator says so, others for 30 s.
// What happens later does not close the gate.
//
// Trap: a build that breaks BGP is ready, and rolls over the cluster.
func TestSessionGate(t *testing.T) {
	up := func(peer string) lb.Session { return lb.Session{Peer: peer, State: lb.Established} }
	down := func(peer string) lb.Session { return lb.Session{Peer: peer, State: "idle"} }
	type look struct {
		after            time.Duration
		sessions         []lb.Session
		awaited          []string
		known, overrides bool
		want             string
	}
	a := []string{"a"}
	for _, tt := range []struct {
		name  string
		looks []look
	}{
		{"no peer", []look{{known: true}}},
		{"all are up", []look{{sessions: []lb.Session{up("a"), up("b")}, known: true}}},
		{"the former speaker had it", []look{
			{sessions: []lb.Session{down("a")}, awaited: a, known: true, want: "with a, which"},
			{after: time.Hour, sessions: []lb.Session{down("a")}, awaited: a, known: true, want: "with a, which"},
			{after: time.Hour, sessions: []lb.Session{up("a")}, known: true},
			{after: 2 * time.Hour, sessions: []lb.Session{down("a")}, known: true},
		}},
		{"it was up once", []look{
			{sessions: []lb.Session{down("a")}, known: true, want: "with a yet"},
			{after: sessionWait, sessions: []lb.Session{down("a")}, known: true},
		}},
		{"it cannot be used", []look{{after: time.Hour, awaited: a, known: true, want: "with a, which"}}},
		{"the operator goes on", []look{
			{sessions: []lb.Session{down("a")}, awaited: a, known: true, want: "with a, which"},
			{sessions: []lb.Session{down("a")}, awaited: a, known: true, overrides: true},
			{sessions: []lb.Session{down("a")}, awaited: a, known: true},
		}},
		{"a new peer", []look{
			{sessions: []lb.Session{up("a"), down("b")}, known: true, want: "with b yet"},
			{after: sessionWait - time.Second, sessions: []lb.Session{up("a"), down("b")}, known: true, want: "with b yet"},
			{after: sessionWait, sessions: []lb.Session{up("a"), down("b")}, known: true},
		}},
		{"the API server is away", []look{
			{sessions: []lb.Session{up("a")}, want: "not read"},
			{after: sessionWait, sessions: []lb.Session{down("a")}},
		}},
	} {
		g, start := sessionGate{log: slog.New(slog.DiscardHandler)}, time.Now()
		for i, l := range tt.looks {
			err := g.check(start.Add(l.after), l.sessions, l.awaited, l.known, l.overrides)
			if (err != nil) != (l.want != "") || err != nil && !strings.Contains(err.Error(), l.want) {
				t.Errorf("%s, look %d: %v, want %q", tt.name, i, err, l.want)
			}
		}
	}
}
