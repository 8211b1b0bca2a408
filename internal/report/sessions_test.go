package report

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

// TestSessionStates: what the SpeakerState says of a session, and no value of an established session while it is down.
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
		name    string
		session lb.Session
		want    v1beta1.SessionState
	}{
		{"up", full, v1beta1.SessionState{Peer: "r", State: "established", Since: at, Withheld: "no IPv6",
			AdvertisedRoutes: 7, BFD: "up",
			Capabilities: []string{"4-byte AS"}, HoldSeconds: 90, KeepaliveSeconds: 30}},
		{"down", down, v1beta1.SessionState{
			Peer: "r", State: "down", Since: at, LastError: "cannot connect: [31m refused", BFD: "up",
		}},
		{"never up", lb.Session{Peer: "r", State: "connect"}, v1beta1.SessionState{Peer: "r", State: "down"}},
	} {
		if diff := cmp.Diff([]v1beta1.SessionState{tt.want}, sessionStates([]lb.Session{tt.session})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestEstablishedOf: a column shows one value, so the SpeakerState has the count of established sessions as one.
func TestEstablishedOf(t *testing.T) {
	for want, sessions := range map[string][]lb.Session{
		"":    nil,
		"0/1": {sessionDown("a")},
		"1/2": {sessionUp("a"), sessionDown("b")},
		"2/2": {sessionUp("a"), sessionUp("b")},
	} {
		if got := establishedOf(sessions); got != want {
			t.Errorf("%v: %q, want %q", sessions, got, want)
		}
	}
}

// TestSessionStatesAreAdmitted: whatever the sessions say, and however many there are, the API server takes it.
func TestSessionStatesAreAdmitted(t *testing.T) {
	var sessions []lb.Session
	for i := range 2 * maxListed {
		s := lb.Session{Peer: fmt.Sprintf("r%d", i), State: lb.Established, Since: time.Now(), HoldTime: 1 << 40,
			Keepalive: 1 << 40, Advertised: 1 << 40,
			Withheld:     strings.Repeat("ü\n", 1000),
			Capabilities: strings.Split(strings.Repeat(strings.Repeat("x", 100)+" ", 100), " ")}
		if i%2 == 0 {
			s = lb.Session{Peer: s.Peer, State: "active", LastError: strings.Repeat("\xff", 10_000), BFD: "down"}
		}
		sessions = append(sessions, s)
	}
	out := markAwaited(sessionStates(sessions), []string{"awaited"})
	if len(out) != maxListed {
		t.Errorf("%d sessions", len(out))
	}
	state := map[string]any{
		"apiVersion": v1beta1.GroupVersion.String(), "kind": "SpeakerState", "metadata": map[string]any{"name": "w1"},
	}
	if _, err := apitest.Patched(t, state, map[string]any{"status": map[string]any{"sessions": out}}); err != nil {
		t.Error(err)
	}
}

// sessionUp and sessionDown are sessions with a peer.
func sessionUp(peer string) lb.Session { return lb.Session{Peer: peer, State: lb.Established} }

func sessionDown(peer string) lb.Session { return lb.Session{Peer: peer, State: "idle"} }

// TestAwaited: each speaker that starts on a node waits for the sessions of those before it until they were up once,
// however often it crashes, and for no others.
//
// Trap: a speaker that crashes before its first session is up writes that the session is down, and the next one waits
// for nothing.
func TestAwaited(t *testing.T) {
	selecting := map[string]bool{"a": true, "b": true, "c": true}
	var states = sessionStates([]lb.Session{sessionUp("a"), sessionUp("b"), sessionDown("c"), sessionUp("gone")})
	start := func() *sessionGate {
		w := &sessionGate{selecting: func() map[string]bool { return selecting }}
		w.await(states)
		return w
	}
	expect := func(when string, w *sessionGate, sessions []lb.Session, want ...string) {
		t.Helper()
		got, _ := w.remaining(sessions)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
		states = markAwaited(sessionStates(sessions), got)
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
	expect("all are down", w, []lb.Session{sessionDown("a"), sessionDown("b"), sessionDown("c")}, "a", "b")
	expect("one is up", w, []lb.Session{sessionUp("a"), sessionDown("b"), sessionDown("c")}, "b")
	expect("it goes down, and another cannot be used", w, []lb.Session{sessionDown("a"), sessionUp("c")}, "b")
	expect("it crashed again", start(), []lb.Session{sessionDown("a"), sessionDown("b"), sessionDown("c")}, "b", "c")
	delete(selecting, "b")
	expect("one selects other nodes", start(), []lb.Session{sessionDown("a"), sessionDown("c")}, "c")
	selecting["b"] = true
	expect("all are up", start(), []lb.Session{sessionUp("c")})
	if _, known := (&sessionGate{}).remaining(nil); known {
		t.Error("known before the state was read")
	}
}

// TestSessionGate: sessions that are awaited hold readiness until they are up or the operator says so, others for 30 s.
// What happens later does not close the gate.
//
// Trap: a build that breaks BGP is ready, and rolls over the cluster.
func TestSessionGate(t *testing.T) {
	type look struct {
		after     time.Duration
		sessions  []lb.Session
		overrides bool
		want      string
	}
	none, a := []string{}, []string{"a"}
	for _, tt := range []struct {
		name string
		// awaited are those that the former speaker had; nil if they were not read.
		awaited []string
		looks   []look
	}{
		{"no peer", none, []look{{}}},
		{"all are up", none, []look{{sessions: []lb.Session{sessionUp("a"), sessionUp("b")}}}},
		{"the former speaker had it", a, []look{
			{sessions: []lb.Session{sessionDown("a")}, want: "with a, which"},
			{after: time.Hour, sessions: []lb.Session{sessionDown("a")}, want: "with a, which"},
			{after: time.Hour, sessions: []lb.Session{sessionUp("a")}},
			{after: 2 * time.Hour, sessions: []lb.Session{sessionDown("a")}},
		}},
		{"it was up once", none, []look{
			{sessions: []lb.Session{sessionDown("a")}, want: "with a yet"},
			{after: sessionWait, sessions: []lb.Session{sessionDown("a")}},
		}},
		{"it cannot be used", a, []look{{after: time.Hour, want: "with a, which"}}},
		{"the operator goes on", a, []look{
			{sessions: []lb.Session{sessionDown("a")}, want: "with a, which"},
			{sessions: []lb.Session{sessionDown("a")}, overrides: true},
			{sessions: []lb.Session{sessionDown("a")}},
		}},
		{"a new peer", none, []look{
			{sessions: []lb.Session{sessionUp("a"), sessionDown("b")}, want: "with b yet"},
			{after: sessionWait - time.Second, sessions: []lb.Session{sessionUp("a"), sessionDown("b")}, want: "with b yet"},
			{after: sessionWait, sessions: []lb.Session{sessionUp("a"), sessionDown("b")}},
		}},
		{"the API server is away", nil, []look{
			{sessions: []lb.Session{sessionUp("a")}, want: "not read"},
			{after: sessionWait, sessions: []lb.Session{sessionDown("a")}},
		}},
	} {
		g, start := &sessionGate{log: slog.New(slog.DiscardHandler), selecting: func() map[string]bool {
			return map[string]bool{"a": true}
		}}, time.Now()
		if tt.awaited != nil {
			g.await(markAwaited(nil, tt.awaited))
		}
		for i, l := range tt.looks {
			err := g.check(start.Add(l.after), l.sessions, l.overrides)
			if (err != nil) != (l.want != "") || err != nil && !strings.Contains(err.Error(), l.want) {
				t.Errorf("%s, look %d: %v, want %q", tt.name, i, err, l.want)
			}
		}
	}
}
