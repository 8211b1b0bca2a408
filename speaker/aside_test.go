//go:build !race

package main

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"golang.org/x/sync/errgroup"
)

// TestStandingAsideIsCutOff: a node that stands aside for others still does not hear
// them: it stays cut off, and comes to know what is lost to it.
//
// Not under the race detector: see TestAPIServerAway.
func TestStandingAsideIsCutOff(t *testing.T) {
	k8s.LogTo(slog.New(slog.DiscardHandler))
	for _, tt := range []struct {
		name, elsewhere string
		deaf            bool
	}{
		{"one of two", "w1", false},
		{"one of three, which is deaf", "w1 w2", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testStandingAside(t, strings.Fields(tt.elsewhere), tt.deaf) })
			})
		})
	}
}

func testStandingAside(t *testing.T, elsewhere []string, deaf bool) {
	ctx, stop := context.WithCancel(t.Context())
	var group errgroup.Group
	c := newFleet(t, append(slices.Clone(elsewhere), "w9")...)
	c.serve("192.0.2.1") // by a pod on w1
	for _, name := range elsewhere {
		delete(c.alive, name)
	}
	c.start(ctx, &group, "w9")
	defer func() {
		stop()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	}()
	time.Sleep(10 * time.Second)
	w := c.speakers["w9"]
	for range 3 {
		view := c.view()
		view.Alone = deaf
		alive := maps.Clone(view.Alive)
		w.syncer.aside = func() lb.Partition { return lb.Partition{Elsewhere: elsewhere} }
		now, err := w.follow(nil, view, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(view.Alive, alive) {
			t.Errorf("alive are %v, want %v as before", view.Alive, alive)
		}
		if !slices.ContainsFunc(now.Problems, func(p lb.Problem) bool { return p.Reason == lb.CutOff && p.Object.Kind == config.KindNode }) {
			t.Errorf("it does not say that it is cut off: %v", now.Problems)
		}
		w.surroundings.mu.Lock()
		said := maps.Clone(w.surroundings.said)
		w.surroundings.mu.Unlock()
		for _, name := range elsewhere {
			if known, lost := said[name]; !lost || !known {
				t.Errorf("%s: lost %t, known %t, want both", name, lost, known)
			}
		}
		time.Sleep(10 * time.Second)
	}
}
