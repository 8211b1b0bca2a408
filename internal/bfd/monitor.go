package bfd

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"reflect"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Config of a Monitor.
type Config struct {
	Log *slog.Logger
	// Changed is called when the state of a session changed. It must not block.
	Changed func()
}

// Monitor is the speaker's side: it says which sessions are wanted, and knows what became of them. The sessions run in
// the process of the heartbeats.
type Monitor struct {
	config Config

	mu    sync.Mutex
	peers []Peer
	// out leads to the process; nil while there is none.
	out *json.Encoder
	// last is what the process reported; nil while it has not since it started.
	last []Status
}

// New returns a Monitor without sessions.
func New(c Config) *Monitor { return &Monitor{config: c} }

// Set makes these the sessions. It does not wait for them.
func (m *Monitor) Set(peers []Peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if reflect.DeepEqual(peers, m.peers) {
		return
	}

	m.peers = slices.Clone(peers)
	m.order()
}

// order sends the wanted sessions. mu is held.
func (m *Monitor) order() {
	if m.out != nil {
		_ = m.out.Encode(m.peers) // fails only if the process is gone
	}
}

// Serve has the wanted sessions run in the process that a connection leads to, until that is gone. Then nothing is
// known.
func (m *Monitor) Serve(conn net.Conn) {
	m.mu.Lock()
	m.out = json.NewEncoder(conn)
	m.order()
	m.mu.Unlock()
	for in := json.NewDecoder(conn); ; {
		var statuses []Status
		if in.Decode(&statuses) != nil {
			break
		}

		m.notice(statuses)
	}

	m.mu.Lock()
	m.out = nil
	m.mu.Unlock()
	m.notice(nil)
}

// notice takes what the process reports, logs each change once, and passes on whether there was any.
func (m *Monitor) notice(statuses []Status) {
	m.mu.Lock()
	before := m.last
	m.last = statuses
	m.mu.Unlock()
	was := map[string]Status{}
	for _, s := range before {
		was[s.Name] = s
	}

	changed := len(before) != len(statuses)
	for _, s := range statuses {
		o, known := was[s.Name]
		if known &&
			o.State == s.State &&
			o.Remote == s.Remote &&
			o.SwitchedOff == s.SwitchedOff &&
			o.Ups == s.Ups &&
			o.Failures == s.Failures &&
			o.Error == s.Error {
			continue
		}

		changed = true
		switch {
		case s.Error != "":
			m.config.Log.Warn("BFD session cannot come up", "peer", s.Name, "error", s.Error)
		case known || s.State != Down:
			m.config.Log.Info("BFD session", "peer", s.Name, "state", s.State.String(), "why", s.Diagnostic.String(),
				"neighbor", s.Remote.String(), "failures", s.Failures)
		}
	}

	if changed {
		m.config.Changed()
	}
}

// Statuses returns what is known of the wanted sessions; none while the process has not reported.
func (m *Monitor) Statuses() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.last)
}

// Describe implements prometheus.Collector.
func (m *Monitor) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *Monitor) Collect(ch chan<- prometheus.Metric) {
	for _, s := range m.Statuses() {
		metric := func(name, help string, kind prometheus.ValueType, value float64, labels prometheus.Labels) {
			ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("holdfast_bfd_"+name, help, []string{"peer"}, labels), kind, value, s.Name)
		}

		metric(
			"session_up",
			"1 if the BFD session is up.",
			prometheus.GaugeValue,
			map[bool]float64{true: 1}[s.State == Up],
			nil,
		)

		metric(
			"detection_seconds",
			"Silence of the peer after which the BFD session falls.",
			prometheus.GaugeValue,
			s.Detection.Seconds(),
			nil,
		)

		metric("ups_total", "Times that the BFD session came up.", prometheus.CounterValue, float64(s.Ups), nil)
		metric(
			"failures_total",
			"Times that the BFD session fell; not counted if one of both sides was switched off.",
			prometheus.CounterValue,
			float64(s.Failures),
			nil,
		)

		for direction, n := range map[string]uint64{"sent": s.Sent, "received": s.Received, "rejected": s.Rejected} {
			metric(
				"packets_total",
				"BFD packets by direction: sent, received, or rejected: from the peer and not acceptable.",
				prometheus.CounterValue,
				float64(n),
				prometheus.Labels{"direction": direction},
			)
		}
	}
}

// Serve holds the sessions that a Monitor orders by a connection, until the deadline of a read passes. Then the
// neighbors are told that the sessions are switched off. If the Monitor is gone, they are not: the process is to end at
// once. While hangs returns true, the speaker does not serve and no packet is sent.
func Serve(conn net.Conn, hangs func() bool) {
	defer conn.Close()
	t, err := newThread(hangs)
	if err != nil {
		return // there is nothing that could be reported of sessions
	}

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.run()
	}()

	go t.obey(conn)
	for out := json.NewEncoder(conn); ; {
		select {
		case statuses := <-t.notices:
			_ = out.Encode(statuses) // fails only if the Monitor is gone
		case <-ended:
			return
		}
	}
}

// obey takes orders, each of which is all that is wanted.
func (t *thread) obey(conn net.Conn) {
	for in := json.NewDecoder(conn); ; t.event.Wake() {
		var peers []Peer
		err := in.Decode(&peers)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			t.stopping.Store(true)
			t.event.Wake()
			return
		case err != nil:
			return
		}

		t.wanted.Store(&peers)
	}
}
