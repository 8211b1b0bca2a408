package main

import (
	"log/slog"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/members"
)

// A node that the state finds missed first, as one whose pod is new, is asked at once:
// until it was asked nothing is written.
func TestSilentAsks(t *testing.T) {
	kicks := 0
	l := newListener(slog.New(slog.DiscardHandler), "a", 7947)
	l.cluster, l.api, l.kick = twoNodes{}, func() bool { return true }, func() { kicks++ }
	l.view = func() *members.View { return &members.View{Alive: nodes("a")} }
	if s := l.silent(time.Now(), false); s.complete || kicks != 1 {
		t.Errorf("b was never asked: complete %v, %d kicks, want 1", s.complete, kicks)
	}
	l.now.silence.heard(time.Now(), "b", false)
	if s := l.silent(time.Now(), false); !s.complete || kicks != 1 {
		t.Errorf("b was asked: complete %v, %d kicks, want 1", s.complete, kicks)
	}
}
