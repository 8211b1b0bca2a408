package conntrack

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/prometheus/client_golang/prometheus"
)

// sweepTimes are the delays, after the loss of endpoints, at which the connection attempts to all lost ones are forgotten.
// There are several because kube-proxy sends clients to an endpoint until it has read the new EndpointSlices: a second, in a
// large cluster several.
var sweepTimes = []time.Duration{0, time.Second, 2 * time.Second, 5 * time.Second, 15 * time.Second}

// Sweeper forgets the connection attempts to lost endpoints. Without lost endpoints it does nothing: a sweep reads the
// whole conntrack table, and a rollout of an application must not cost that.
type Sweeper struct {
	log       *slog.Logger
	forget    func(endpoints map[netip.Addr]bool) (int, error)
	forgotten prometheus.Counter
	loop      *daemon.Loop

	mu   sync.Mutex
	lost map[netip.Addr]bool
	// since is when the last of them was lost; swept is how many of the sweeps since then are done.
	since time.Time
	swept int
}

// New returns a Sweeper that Run starts.
func New(log *slog.Logger) *Sweeper { return newSweeper(log, Forget) }

func newSweeper(log *slog.Logger, forget func(map[netip.Addr]bool) (int, error)) *Sweeper {
	s := &Sweeper{log: log, forget: forget, forgotten: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "holdfast_stranded_attempts_forgotten_total", Help: "Connection attempts to endpoints on dead nodes that were deleted from conntrack.",
	})}
	s.loop = daemon.NewLoop(daemon.LoopConfig{Name: "conntrack", Log: log, Sync: func(context.Context) (time.Duration, error) { return s.sweep() }})
	return s
}

// Set replaces the set of endpoints on dead nodes.
func (s *Sweeper) Set(lost map[netip.Addr]bool) {
	s.mu.Lock()
	more := false
	for a := range lost {
		more = more || !s.lost[a]
	}
	s.lost = lost
	if more {
		s.since, s.swept = time.Now(), 0
	}
	s.mu.Unlock()
	if more {
		s.loop.Kick()
	}
}

// Run sweeps until ctx ends.
func (s *Sweeper) Run(ctx context.Context) error { return s.loop.Run(ctx) }

// sweep runs a sweep if one is due, or failed before. It returns the time until the next one, 0 for never.
func (s *Sweeper) sweep() (next time.Duration, err error) {
	s.mu.Lock()
	lost, since, due := s.lost, s.since, 0
	for passed := time.Since(since); due < len(sweepTimes) && sweepTimes[due] <= passed; due++ {
	}
	done := s.swept >= due
	s.mu.Unlock()
	if due < len(sweepTimes) {
		next = time.Until(since.Add(sweepTimes[due]))
	}
	if len(lost) == 0 {
		return 0, nil
	}
	if done {
		return next, nil
	}
	n, err := s.forget(lost)
	s.forgotten.Add(float64(n))
	if n > 0 {
		s.log.Info("forgot connection attempts to endpoints on dead nodes", "attempts", n, "endpoints", len(lost))
	}
	if err != nil {
		return next, fmt.Errorf("forget connection attempts to %d endpoints on dead nodes: %w", len(lost), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.Equal(since) {
		s.swept = due
	}
	return next, nil
}

// Describe implements prometheus.Collector.
func (s *Sweeper) Describe(ch chan<- *prometheus.Desc) { s.forgotten.Describe(ch) }

// Collect implements prometheus.Collector.
func (s *Sweeper) Collect(ch chan<- prometheus.Metric) { s.forgotten.Collect(ch) }
