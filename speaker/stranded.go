package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/conntrack"
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

// sweep returns the endpoints whose time has come, and counts that as done. next is
// the time until there is more to do, 0 for never.
func (s stranded) sweep(now time.Time) (due map[netip.Addr]bool, next time.Duration) {
	due = map[netip.Addr]bool{}
	for a, l := range s {
		age := now.Sub(l.since)
		for l.swept < len(sweepTimes) && sweepTimes[l.swept] <= age {
			due[a] = true
			l.swept++
		}
		s[a] = l
		if l.swept < len(sweepTimes) {
			if wait := sweepTimes[l.swept] - age; next == 0 || wait < next {
				next = wait
			}
		}
	}
	return due, next
}

// sweeper has the kernel forget attempts to connect to endpoints on nodes that are
// gone. While all speakers are heard it looks at nothing: it takes a whole table of
// connections to do so, which rollouts of applications must not cost.
type sweeper struct {
	options config.Options
	log     *slog.Logger
	cluster *k8s.Cluster
	// alive returns the nodes of the living speakers, nil while that is not known.
	alive     func() map[string]bool
	kick      func()
	forgotten *atomic.Int64

	stranded stranded
	due      *time.Timer
}

// sync sweeps what is due.
func (w *sweeper) sync(context.Context) error {
	alive := w.alive()
	if alive == nil || !w.cluster.Synced() || w.cluster.Uninstalling() {
		return nil
	}
	missed := map[string]bool{}
	for node := range w.cluster.SpeakerAddresses() {
		if !alive[node] {
			missed[node] = true
		}
	}
	if len(missed) == 0 {
		w.stranded = nil
		return nil
	}
	if w.stranded == nil {
		w.stranded = stranded{}
	}
	objects := w.cluster.Objects()
	w.stranded.keep(time.Now(), w.options.LostEndpoints(objects.Services, objects.EndpointSlices, missed))
	due, next := w.stranded.sweep(time.Now())
	if next > 0 {
		if w.due != nil {
			w.due.Stop()
		}
		w.due = time.AfterFunc(next, w.kick)
	}
	if len(due) == 0 {
		return nil
	}
	n, err := conntrack.Forget(due)
	w.forgotten.Add(int64(n))
	if n > 0 {
		w.log.Info("forgot attempts to connect to endpoints on dead nodes", "attempts", n, "endpoints", len(due))
	}
	if err != nil {
		return fmt.Errorf("forget attempts to connect to %d endpoints on dead nodes: %w", len(due), err)
	}
	return nil
}
