package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

func TestStandAside(t *testing.T) {
	state := func() lb.State {
		return lb.State{Members: map[string]bool{"c": true}, HeldDown: map[string]bool{}}
	}
	for _, tt := range []struct {
		elsewhere []string
		want      string
	}{
		{nil, "map[c:true] map[]"},
		{[]string{"a", "b"}, "map[a:true b:true c:true] map[c:true]"},
	} {
		s := state()
		standAside(tt.elsewhere, &s)
		if got := fmt.Sprint(s.Members, s.HeldDown); got != tt.want {
			t.Errorf("for %v: %s, want %s", tt.elsewhere, got, tt.want)
		}
	}
}

// TestInOrder: who has been dead for long does not take the place of those that
// fell silent just now.
func TestInOrder(t *testing.T) {
	start := time.Unix(1000, 0)
	w := &witness{}
	latest := w.note(start, []string{"b", "a"})
	if got := fmt.Sprint(w.inOrder([]string{"b", "a"}, latest)); got != "[a b]" {
		t.Errorf("in order: %s", got)
	}
	w.note(start.Add(time.Minute), []string{"d", "b", "a"})
	latest = w.note(start.Add(time.Minute+soon), []string{"c", "d", "b", "a"})
	if got := fmt.Sprint(w.inOrder([]string{"d", "c", "b", "a"}, latest)); got != "[c d a b]" {
		t.Errorf("in order: %s", got)
	}
	if want := start.Add(time.Minute + soon); !latest.Equal(want) {
		t.Errorf("the latest is missed since %s, want %s", latest, want)
	}
	w.note(start.Add(2*time.Minute), []string{"b"})
	if len(w.since) != 1 || !w.since["b"].Equal(start) {
		t.Errorf("remembered: %v", w.since)
	}
}
