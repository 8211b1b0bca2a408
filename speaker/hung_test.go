//go:build !race

package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// phases returns what a speaker does with its addresses, sorted.
func (n *node) phases() string {
	var out []string
	for _, a := range n.layer2.State().Addresses {
		out = append(out, a.Phase)
	}
	return strings.Join(out, ", ")
}

// TestHungSpeaker: real speakers but for membership and sockets. The run that hung announces nothing when it ends; the next one
// leaves to the others what they took, and the one after that is as ever.
func TestHungSpeaker(t *testing.T) {
	k8s.LogTo(slog.New(slog.DiscardHandler))
	utilruntime.ErrorHandlers = nil // as in TestAPIServerAway
	for _, tt := range []struct {
		nodes  []string
		during string
	}{
		{[]string{"w1"}, "announced, announced"},
		{[]string{"w1", "w2"}, "handing over"},
	} {
		nstest.Run(t, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testHung(t, tt.during, tt.nodes...) })
		})
	}
}

// testHung has w1 hang. During is what it does with its address by the first plan after that.
func testHung(t *testing.T, during string, nodes ...string) {
	ctx, stop := context.WithCancel(t.Context())
	var group errgroup.Group
	c := newFleet(t, nodes...)
	for _, a := range []string{"192.0.2.1", "192.0.2.2"} {
		c.serve(a, metav1.Condition{Type: v1beta1.ConditionAnnouncers, Status: metav1.ConditionTrue, Message: a + "=w9"}) // so nobody probes
	}
	var plans []string
	hold := make(chan struct{})
	var holds bool
	c.hangs = func(w *syncer) {
		if w.node != "w1" || !holds {
			return
		}
		if !w.hung.Load() {
			<-hold
		}
		plans = append(plans, c.speakers["w1"].phases())
	}
	for _, name := range nodes {
		c.start(ctx, &group, name)
	}
	defer func() {
		stop()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	}()
	time.Sleep(10 * time.Second)
	w1 := c.speakers["w1"]
	before := w1.phases()
	if !strings.Contains(before, "announced") {
		t.Fatalf("w1 has nothing, so nothing is tested: %q", before)
	}
	holds = true
	w1.loop.Kick()
	time.Sleep(9 * time.Second)
	if got := w1.phases(); got != before {
		t.Errorf("after nine seconds: %s, want %s", got, before)
	}
	time.Sleep(3 * time.Second)
	offered := strings.ReplaceAll(before, "announced", "offered to others")
	if got := w1.phases(); got != offered {
		t.Errorf("after twelve seconds: %s, want %s", got, offered)
	}
	if err := w1.hang.alive(); err != nil {
		t.Errorf("w1 is to be started again though nobody was heard: %v", err)
	}
	for _, n := range c.speakers {
		n.loop.Kick()
	}
	time.Sleep(time.Second)
	if len(nodes) > 1 {
		if got := c.speakers["w2"].phases(); got != "announced, announced" {
			t.Errorf("w2: %s", got)
		}
	}
	close(hold)
	time.Sleep(10 * time.Second)
	if want := []string{offered, offered, during}; len(plans) < 3 || !slices.Equal(plans[:3], want) {
		t.Errorf("when its runs go on: %v, want %v", plans, want)
	}
	if got := w1.phases(); got != before || w1.hung.Load() || w1.hang.alive() != nil {
		t.Errorf("in the end: %s, want %s; %v", got, before, w1.hang.alive())
	}
}
