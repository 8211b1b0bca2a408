package kubeproxy

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
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
// It also deletes the entries of ended connections to an address when the address moves here from a living node, once. They may be from
// before the address left this node, and last for two minutes (nf_conntrack_tcp_timeout_time_wait). Of a connection to the former owner
// that has the ports of an ended one, conntrack would call every segment invalid, and the relay would not take it.
//
// Without either a Sweeper does nothing: a sweep reads the whole conntrack table, and a rollout of an application must not
// cost that.
type Sweeper struct {
	log *slog.Logger
	// These are forgetAttempts and forgetEnded. Tests replace them.
	forgetAttempts, forgetEnded func(map[netip.Addr]bool) (int, error)

	forgotten prometheus.Counter
	// more wakes Run when more endpoints are lost, or an address moved here.
	more chan struct{}

	mu sync.Mutex
	// lost are the endpoints on dead nodes, moved the addresses that moved here since the last sweep.
	lost, moved map[netip.Addr]bool
}

// NewSweeper returns a Sweeper that sweeps while Run runs.
func NewSweeper(log *slog.Logger) *Sweeper {
	return &Sweeper{log: log, forgetAttempts: forgetAttempts, forgetEnded: forgetEnded, more: make(chan struct{}, 1), moved: map[netip.Addr]bool{},
		forgotten: prometheus.NewCounter(prometheus.CounterOpts{
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
	s.lost = lost
	s.wake(more)
}

// Relay forgets ended connections to the addresses whose relays begin now. It does not wait for that: called ahead of all that a
// plan changes, it is mostly over when clients hear of the new owner.
func (s *Sweeper) Relay(relays []lb.Relay, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.moved)
	for _, r := range relays {
		if r.Start.Equal(now) {
			s.moved[r.Address] = true
		}
	}
	s.wake(len(s.moved) > before)
}

// wake begins the sweeps again.
func (s *Sweeper) wake(more bool) {
	if !more {
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

// sweep forgets the attempts to all lost endpoints, and ended connections to addresses that moved here.
func (s *Sweeper) sweep() {
	s.mu.Lock()
	lost, moved := s.lost, s.moved
	s.moved = map[netip.Addr]bool{}
	s.mu.Unlock()
	ended, err := s.forgetEnded(moved)
	if ended > 0 {
		s.log.Info("forgot ended connections to addresses that moved here", "connections", ended, "addresses", len(moved))
	}
	if err != nil {
		s.log.Warn("cannot forget ended connections to addresses that moved here", "addresses", len(moved), "error", err)
		s.mu.Lock()
		maps.Copy(s.moved, moved)
		s.mu.Unlock()
	}
	attempts, err := s.forgetAttempts(lost)
	s.forgotten.Add(float64(attempts))
	if attempts > 0 {
		s.log.Info("forgot connection attempts to endpoints on dead nodes", "attempts", attempts, "endpoints", len(lost))
	}
	if err != nil {
		s.log.Warn("cannot forget connection attempts to endpoints on dead nodes", "endpoints", len(lost), "error", err)
	}
}

// Describe implements prometheus.Collector.
func (s *Sweeper) Describe(ch chan<- *prometheus.Desc) { s.forgotten.Describe(ch) }

// Collect implements prometheus.Collector.
func (s *Sweeper) Collect(ch chan<- prometheus.Metric) { s.forgotten.Collect(ch) }
