package main

import (
	"fmt"
	"testing"

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
