package main

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

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
