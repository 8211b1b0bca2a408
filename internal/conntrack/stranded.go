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

// sweepTimes are the delays, after the loss of an endpoint, at which its connection attempts are forgotten. There are
// several because kube-proxy sends clients to the endpoint until it has read the new EndpointSlices: a second, in a large
// cluster several.
var sweepTimes = []time.Duration{0, time.Second, 2 * time.Second, 5 * time.Second, 15 * time.Second}

// stranded are the lost endpoints, by address. It is pure: the time is an argument.
type stranded map[netip.Addr]loss

// loss is the time since which an endpoint is lost, and its number of sweeps.
type loss struct {
	since time.Time
	swept int
}

// update removes the endpoints that are not in lost, and adds new ones.
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

// dueSweeps returns the number of sweeps of an endpoint that were due until now.
func (l loss) dueSweeps(now time.Time) int {
	n := 0
	for n < len(sweepTimes) && sweepTimes[n] <= now.Sub(l.since) {
		n++
	}
	return n
}

// due returns the endpoints that need a sweep. next is the time until the next sweep is due, 0 for never.
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

// markSwept counts the sweeps that were due then as done.
func (s stranded) markSwept(then time.Time) {
	for a, l := range s {
		l.swept = l.dueSweeps(then)
		s[a] = l
	}
}

// Sweeper forgets the connection attempts to lost endpoints. Without lost endpoints it does nothing: a sweep reads the
// whole conntrack table, and a rollout of an application must not cost that.
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

// Set replaces the set of endpoints on dead nodes.
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

// sweep runs the sweeps that are due, including those that failed before. It returns the time until the next one.
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
		s.log.Info("forgot connection attempts to endpoints on dead nodes", "attempts", n, "endpoints", len(due))
	}
	if err != nil {
		return next, fmt.Errorf("forget connection attempts to %d endpoints on dead nodes: %w", len(due), err)
	}
	s.stranded.markSwept(now)
	return next, nil
}

var forgottenDesc = prometheus.NewDesc("holdfast_stranded_attempts_forgotten_total",
	"Connection attempts to endpoints on dead nodes that were deleted from conntrack.", nil, nil)

// Describe implements prometheus.Collector.
func (s *Sweeper) Describe(ch chan<- *prometheus.Desc) { ch <- forgottenDesc }

// Collect implements prometheus.Collector.
func (s *Sweeper) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(forgottenDesc, prometheus.CounterValue, float64(s.forgotten.Load()))
}
