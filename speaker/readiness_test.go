package main

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
)

// TestSessionGate: sessions that the former speaker had hold readiness until they are up, the peer is gone or the operator says so;
// others for 30 s. What happens later does not close the gate.
//
// Trap: a build that breaks BGP is ready, and rolls over the cluster.
func TestSessionGate(t *testing.T) {
	up := func(peer string) bgp.Session { return bgp.Session{Peer: peer, State: bgp.Established} }
	down := func(peer string) bgp.Session { return bgp.Session{Peer: peer, State: "idle"} }
	type look struct {
		after            time.Duration
		sessions         []bgp.Session
		known, overrides bool
		want             string
	}
	for _, tt := range []struct {
		name   string
		former []string
		looks  []look
	}{
		{"no peer", nil, []look{{known: true}}},
		{"all are up", []string{"a"}, []look{{sessions: []bgp.Session{up("a"), up("b")}, known: true}}},
		{"the former speaker had it", []string{"a"}, []look{
			{sessions: []bgp.Session{down("a")}, known: true, want: "with a, which"},
			{after: time.Hour, sessions: []bgp.Session{down("a")}, known: true, want: "with a, which"},
			{after: time.Hour, sessions: []bgp.Session{up("a")}, known: true},
			{after: 2 * time.Hour, sessions: []bgp.Session{down("a")}, known: true},
		}},
		{"the operator goes on", []string{"a"}, []look{
			{sessions: []bgp.Session{down("a")}, known: true, want: "with a, which"},
			{sessions: []bgp.Session{down("a")}, known: true, overrides: true},
			{sessions: []bgp.Session{down("a")}, known: true},
		}},
		{"the peer is deleted", []string{"a"}, []look{
			{sessions: []bgp.Session{down("a"), up("b")}, known: true, want: "with a, which"},
			{sessions: []bgp.Session{up("b")}, known: true},
		}},
		{"a new peer", []string{"a"}, []look{
			{sessions: []bgp.Session{up("a"), down("b")}, known: true, want: "with b yet"},
			{after: sessionWait - time.Second, sessions: []bgp.Session{up("a"), down("b")}, known: true, want: "with b yet"},
			{after: sessionWait, sessions: []bgp.Session{up("a"), down("b")}, known: true},
		}},
		{"the API server is away", nil, []look{
			{sessions: []bgp.Session{up("a")}, want: "not read"},
			{after: sessionWait, sessions: []bgp.Session{down("a")}},
		}},
	} {
		g, start := sessionGate{log: slog.New(slog.DiscardHandler)}, time.Now()
		former := map[string]bool{}
		for _, peer := range tt.former {
			former[peer] = true
		}
		for i, l := range tt.looks {
			err := g.check(start.Add(l.after), l.sessions, former, l.known, l.overrides)
			if (err != nil) != (l.want != "") || err != nil && !strings.Contains(err.Error(), l.want) {
				t.Errorf("%s, look %d: %v, want %q", tt.name, i, err, l.want)
			}
		}
	}
}
