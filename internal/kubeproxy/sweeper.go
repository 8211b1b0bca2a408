package kubeproxy

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// sweepTimes are the delays, after the loss of endpoints, at which the connection attempts to all lost ones are forgotten.
// There are several because kube-proxy sends clients to an endpoint until it has read the new EndpointSlices: a second, in a
// large cluster several.
var sweepTimes = []time.Duration{0, time.Second, 2 * time.Second, 5 * time.Second, 15 * time.Second}

// Sweeper deletes the conntrack entries of connection attempts to lost endpoints. An entry binds a connection to the endpoint that
// kube-proxy chose for the first packet, even if that endpoint never answers. Every SYN that the client repeats, and every new
// connection from the same port, goes to the dead endpoint for two minutes (nf_conntrack_tcp_timeout_syn_sent). After the deletion
// kube-proxy chooses an endpoint for the next SYN.
//
// Without lost endpoints a Sweeper does nothing: a sweep reads the whole conntrack table, and a rollout of an application must not
// cost that.
type Sweeper struct {
	log *slog.Logger
	// forget is forgetAttempts. Tests replace it.
	forget    func(endpoints map[netip.Addr]bool) (int, error)
	forgotten prometheus.Counter
	// more wakes Run when more endpoints are lost.
	more chan struct{}

	mu   sync.Mutex
	lost map[netip.Addr]bool
}

// NewSweeper returns a Sweeper that sweeps while Run runs.
func NewSweeper(log *slog.Logger) *Sweeper {
	return &Sweeper{log: log, forget: forgetAttempts, more: make(chan struct{}, 1), forgotten: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "holdfast_stranded_attempts_forgotten_total", Help: "Connection attempts to endpoints on dead nodes that were deleted from conntrack.",
	})}
}

// Set replaces the set of endpoints on dead nodes.
func (s *Sweeper) Set(lost map[netip.Addr]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	more := false
	for a := range lost {
		more = more || !s.lost[a]
	}
	if s.lost = lost; !more {
		return
	}
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// Run sweeps until ctx ends.
func (s *Sweeper) Run(ctx context.Context) error {
	since, done := time.Now(), len(sweepTimes)
	for {
		var due <-chan time.Time
		if done < len(sweepTimes) {
			due = time.After(time.Until(since.Add(sweepTimes[done])))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.more:
			since, done = time.Now(), 0
		case <-due:
			done++
			s.sweep()
		}
	}
}

// sweep forgets the attempts to all lost endpoints.
func (s *Sweeper) sweep() {
	s.mu.Lock()
	lost := s.lost
	s.mu.Unlock()
	if len(lost) == 0 {
		return
	}
	n, err := s.forget(lost)
	s.forgotten.Add(float64(n))
	if n > 0 {
		s.log.Info("forgot connection attempts to endpoints on dead nodes", "attempts", n, "endpoints", len(lost))
	}
	if err != nil {
		s.log.Warn("cannot forget connection attempts to endpoints on dead nodes", "endpoints", len(lost), "error", err)
	}
}

// Describe implements prometheus.Collector.
func (s *Sweeper) Describe(ch chan<- *prometheus.Desc) { s.forgotten.Describe(ch) }

// Collect implements prometheus.Collector.
func (s *Sweeper) Collect(ch chan<- prometheus.Metric) { s.forgotten.Collect(ch) }
