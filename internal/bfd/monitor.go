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

// Config configures a Monitor.
type Config struct {
	Log *slog.Logger
	// Changed is called when the state of a session has changed. It must not block.
	Changed func()
}

// Monitor is the speaker's side: it orders the desired sessions and holds their statuses. The sessions run in the
// process of the heartbeats.
type Monitor struct {
	config Config

	mu    sync.Mutex
	peers []Peer
	// out writes to the process; nil while there is none.
	out *json.Encoder
	// last is the last report of the process; nil if it has not reported since its start.
	last []Status
}

// New returns a Monitor without sessions.
func New(c Config) *Monitor { return &Monitor{config: c} }

// Set sets the desired sessions. It does not wait for them.
func (m *Monitor) Set(peers []Peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if reflect.DeepEqual(peers, m.peers) {
		return
	}

	m.peers = slices.Clone(peers)
	m.sendOrder()
}

// sendOrder sends the desired sessions to the process. The caller holds mu.
func (m *Monitor) sendOrder() {
	if m.out != nil {
		_ = m.out.Encode(m.peers) // fails only if the process has ended
	}
}

// Serve runs the desired sessions in the process at the other end of a connection, until the process ends. Then there
// are no statuses.
func (m *Monitor) Serve(conn net.Conn) {
	m.mu.Lock()
	m.out = json.NewEncoder(conn)
	m.sendOrder()
	m.mu.Unlock()
	for in := json.NewDecoder(conn); ; {
		var statuses []Status
		if in.Decode(&statuses) != nil {
			break
		}

		m.receive(statuses)
	}

	m.mu.Lock()
	m.out = nil
	m.mu.Unlock()
	m.receive(nil)
}

// receive stores a report of the process, and logs the changes. It calls Changed if there are any.
func (m *Monitor) receive(statuses []Status) {
	m.mu.Lock()
	before := m.last
	m.last = statuses
	m.mu.Unlock()

	byName := map[string]Status{}
	for _, s := range before {
		byName[s.Name] = s
	}

	changed := len(before) != len(statuses)
	for _, s := range statuses {
		old, known := byName[s.Name]
		if known && old.isSame(s) {
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

// isSame reports whether two statuses differ in counters and times only.
func (s Status) isSame(o Status) bool {
	return o.State == s.State &&
		o.Remote == s.Remote &&
		o.SwitchedOff == s.SwitchedOff &&
		o.Ups == s.Ups &&
		o.Failures == s.Failures &&
		o.Error == s.Error
}

// Statuses returns the statuses of the desired sessions; none while the process has not reported.
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
			desc := prometheus.NewDesc("holdfast_bfd_"+name, help, []string{"peer"}, labels)
			ch <- prometheus.MustNewConstMetric(desc, kind, value, s.Name)
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

// Serve runs the sessions that a Monitor orders on a connection, until the read deadline of the connection passes. Then
// it reports to the neighbors that the sessions are switched off, and returns. If the Monitor closes the connection, it
// keeps the sessions: the process is about to end. While hangs returns true, the speaker does not serve and no packet
// is sent.
func Serve(conn net.Conn, hangs func() bool) {
	defer conn.Close()
	t, err := newThread(hangs)
	if err != nil {
		return // no session can run, and no status be reported
	}

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.run()
	}()

	go t.readOrders(conn)
	for out := json.NewEncoder(conn); ; {
		select {
		case statuses := <-t.notices:
			_ = out.Encode(statuses) // fails only if the Monitor has closed the connection
		case <-ended:
			return
		}
	}
}

// readOrders receives orders until the read deadline passes or the connection ends. Each order has all desired
// sessions.
func (t *thread) readOrders(conn net.Conn) {
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
