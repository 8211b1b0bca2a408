package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestAPIReached: which results show that the network reaches the API server.
func TestAPIReached(t *testing.T) {
	states := schema.GroupResource{Resource: "speakerstates"}
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, true},
		{apierrors.NewNotFound(states, "a"), true},
		{fmt.Errorf("read: %w", apierrors.NewForbidden(states, "a", nil)), true},
		{apierrors.NewUnauthorized("no"), true},
		{apierrors.NewTooManyRequests("later", 1), true},
		{apierrors.NewServiceUnavailable("no upstream"), false},
		{apierrors.NewInternalError(context.Canceled), false},
		{context.DeadlineExceeded, false},
	} {
		if got := apiReached(tt.err); got != tt.want {
			t.Errorf("%v: %t, want %t", tt.err, got, tt.want)
		}
	}
}

// TestInterval: how long after the last write the next one may come.
func TestInterval(t *testing.T) {
	written := v1beta1.SpeakerStateStatus{}
	owned := written
	owned.Owned.IPv4 = 1
	unreachable := liveness.Silence{Unreachable: []liveness.SilentNode{{Node: "u"}}}
	for _, tt := range []struct {
		name    string
		want    v1beta1.SpeakerStateStatus
		silence liveness.Silence
		alive   int
		min     time.Duration
	}{
		{"nothing changed", written, liveness.Silence{}, 100, refreshInterval},
		{"an address is owned", owned, liveness.Silence{}, 3, stateInterval},
		{"an address is owned, by one of many speakers", owned, liveness.Silence{}, 500, 5 * time.Second},
		{"that does not delay a silence", owned, unreachable, 500, 0},
	} {
		w := &stateWriter{written: written, silence: tt.silence, at: time.Unix(1, 0)}
		if got := w.interval(tt.want, tt.alive, false); got != tt.min {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.min)
		}
	}
}

// TestNodeProblems: the state has a bounded part of the problems.
func TestNodeProblems(t *testing.T) {
	if got := nodeProblems(nil); got != nil {
		t.Errorf("no problem: %v", got)
	}
	many := slices.Repeat([]lb.Problem{{Reason: lb.KernelFeatureMissing, Message: strings.Repeat("m", 10_000)}}, 2*maxProblems)
	got := nodeProblems(many)
	if len(got) != maxProblems || got[0].Reason != "KernelFeatureMissing" || len(got[0].Message) > 8192 {
		t.Errorf("%d problems, the first has %d bytes", len(got), len(got[0].Message))
	}
}
