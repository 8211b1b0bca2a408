package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/k8s"
)

// sweepTimes are when attempts to connect to an endpoint are forgotten, from when it
// was found lost. More than once: until kube-proxy follows the EndpointSlices, a second
// later and on a large cluster several, it leads clients there again.
var sweepTimes = []time.Duration{0, time.Second, 2 * time.Second, 5 * time.Second, 15 * time.Second}

// stranded are lost endpoints, whose clients wait in vain. It is pure: the time is an argument.
type stranded map[netip.Addr]loss

// loss is of one endpoint: since when, and how often it was swept.
type loss struct {
	since time.Time
	swept int
}

// keep forgets endpoints that are not lost any more, and takes up new ones.
func (s stranded) keep(now time.Time, lost map[netip.Addr]bool) {
	for a := range s {
		if !lost[a] {
			delete(s, a)
		}
	}
	for a := range lost {
		if _, known := s[a]; !known {
			s[a] = loss{since: now}
		}
	}
}

// come returns how many sweeps of an endpoint have come due.
func (l loss) come(now time.Time) int {
	n := 0
	for n < len(sweepTimes) && sweepTimes[n] <= now.Sub(l.since) {
		n++
	}
	return n
}

// due returns the endpoints whose time has come. next is the time until more is due, 0 for never.
func (s stranded) due(now time.Time) (due map[netip.Addr]bool, next time.Duration) {
	due = map[netip.Addr]bool{}
	for a, l := range s {
		n := l.come(now)
		if n > l.swept {
			due[a] = true
		}
		if n < len(sweepTimes) {
			if wait := sweepTimes[n] - now.Sub(l.since); next == 0 || wait < next {
				next = wait
			}
		}
	}
	return due, next
}

// done counts what was due then as swept.
func (s stranded) done(then time.Time) {
	for a, l := range s {
		l.swept = l.come(then)
		s[a] = l
	}
}

// sweeper has the kernel forget attempts to connect to endpoints on nodes that are
// gone. While all speakers are heard it looks at nothing: it takes a whole table of
// connections to do so, which rollouts of applications must not cost.
type sweeper struct {
	options config.Options
	log     *slog.Logger
	cluster *k8s.Cluster
	// alive returns the nodes of the living speakers, nil while that is not known.
	alive func() map[string]bool
	// forget is conntrack.Forget.
	forget    func(endpoints map[netip.Addr]bool) (int, error)
	forgotten *atomic.Int64

	stranded stranded
}

// sync sweeps what is due.
func (w *sweeper) sync(context.Context) (again time.Duration, err error) {
	alive := w.alive()
	if alive == nil || !w.cluster.Synced() || w.cluster.Uninstalling() {
		return 0, nil
	}
	missed := map[string]bool{}
	for node := range w.cluster.SpeakerAddresses() {
		if !alive[node] {
			missed[node] = true
		}
	}
	if len(missed) == 0 {
		w.stranded = nil
		return 0, nil
	}
	if w.stranded == nil {
		w.stranded = stranded{}
	}
	objects := w.cluster.Objects()
	return w.sweep(w.options.LostEndpoints(objects.Services, objects.EndpointSlices, missed))
}

// sweep sweeps what is due of the lost endpoints, and what failed before. It returns when more is due.
func (w *sweeper) sweep(lost map[netip.Addr]bool) (next time.Duration, err error) {
	now := time.Now()
	w.stranded.keep(now, lost)
	due, next := w.stranded.due(now)
	if len(due) == 0 {
		return next, nil
	}
	n, err := w.forget(due)
	w.forgotten.Add(int64(n))
	if n > 0 {
		w.log.Info("forgot attempts to connect to endpoints on dead nodes", "attempts", n, "endpoints", len(due))
	}
	if err != nil {
		return next, fmt.Errorf("forget attempts to connect to %d endpoints on dead nodes: %w", len(due), err)
	}
	w.stranded.done(now)
	return next, nil
}
