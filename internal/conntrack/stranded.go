package conntrack

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/loop"
	"github.com/prometheus/client_golang/prometheus"
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

// update forgets endpoints that are not lost any more, and takes up new ones.
func (s stranded) update(now time.Time, lost map[netip.Addr]bool) {
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

// dueSweeps returns how many sweeps of an endpoint have come due.
func (l loss) dueSweeps(now time.Time) int {
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
		n := l.dueSweeps(now)
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

// markSwept counts what was due then as swept.
func (s stranded) markSwept(then time.Time) {
	for a, l := range s {
		l.swept = l.dueSweeps(then)
		s[a] = l
	}
}

// Sweeper has the kernel forget attempts to connect to lost endpoints. While there are none it looks at nothing: it takes
// a whole table of connections to do so, which rollouts of applications must not cost.
type Sweeper struct {
	log       *slog.Logger
	forget    func(endpoints map[netip.Addr]bool) (int, error)
	forgotten atomic.Int64
	loop      *loop.Loop

	mu       sync.Mutex
	lost     map[netip.Addr]bool
	stranded stranded
}

// New returns a Sweeper that Run starts.
func New(log *slog.Logger) *Sweeper { return newSweeper(log, Forget) }

func newSweeper(log *slog.Logger, forget func(map[netip.Addr]bool) (int, error)) *Sweeper {
	s := &Sweeper{log: log, forget: forget, stranded: stranded{}}
	s.loop = loop.New(loop.Config{Name: "conntrack", Log: log, Sync: func(context.Context) (time.Duration, error) { return s.sweep() }})
	return s
}

// Set tells which endpoints are on nodes that are gone.
func (s *Sweeper) Set(lost map[netip.Addr]bool) {
	s.mu.Lock()
	changed := !maps.Equal(s.lost, lost)
	s.lost = lost
	s.mu.Unlock()
	if changed {
		s.loop.Kick()
	}
}

// Run sweeps until ctx ends.
func (s *Sweeper) Run(ctx context.Context) error { return s.loop.Run(ctx) }

// sweep sweeps what is due of the lost endpoints, and what failed before. It returns when more is due.
func (s *Sweeper) sweep() (next time.Duration, err error) {
	now := time.Now()
	s.mu.Lock()
	s.stranded.update(now, s.lost)
	s.mu.Unlock()
	due, next := s.stranded.due(now)
	if len(due) == 0 {
		return next, nil
	}
	n, err := s.forget(due)
	s.forgotten.Add(int64(n))
	if n > 0 {
		s.log.Info("forgot attempts to connect to endpoints on dead nodes", "attempts", n, "endpoints", len(due))
	}
	if err != nil {
		return next, fmt.Errorf("forget attempts to connect to %d endpoints on dead nodes: %w", len(due), err)
	}
	s.stranded.markSwept(now)
	return next, nil
}

var forgottenDesc = prometheus.NewDesc("holdfast_stranded_attempts_forgotten_total",
	"Attempts to connect that waited for an endpoint on a dead node, which the kernel was made to forget.", nil, nil)

// Describe implements prometheus.Collector.
func (s *Sweeper) Describe(ch chan<- *prometheus.Desc) { ch <- forgottenDesc }

// Collect implements prometheus.Collector.
func (s *Sweeper) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(forgottenDesc, prometheus.CounterValue, float64(s.forgotten.Load()))
}
