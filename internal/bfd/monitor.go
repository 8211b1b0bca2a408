package bfd

import (
	"encoding/json"
	"log/slog"
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
// the process of the heartbeats, which it reaches by the function that Connect gives it.
type Monitor struct {
	config Config

	mu    sync.Mutex
	peers []Peer
	send  func(json.RawMessage)
	last  notice
	// known: the process has reported since it started.
	known bool
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

// Connect has the wanted sessions sent by a function, now and when they change.
func (m *Monitor) Connect(send func(json.RawMessage)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.send = send
	m.order()
}

// order sends the wanted sessions. mu is held.
func (m *Monitor) order() {
	if m.send == nil {
		return
	}
	raw, err := json.Marshal(order{m.peers})
	if err != nil {
		panic("encode an order: " + err.Error()) // it has plain values only
	}
	m.send(raw)
}

// Notice takes what the process reports; nil says that the process ended, so that nothing is known.
func (m *Monitor) Notice(raw json.RawMessage) {
	var n notice
	if raw != nil {
		if err := json.Unmarshal(raw, &n); err != nil {
			panic("a notice of our own cannot be read: " + err.Error())
		}
	}
	m.mu.Lock()
	before := m.last
	m.last, m.known = n, raw != nil
	m.mu.Unlock()
	if m.logChanges(before.Sessions, n.Sessions) {
		m.config.Changed()
	}
}

// Statuses returns what is known of the wanted sessions; none while the process has not reported.
func (m *Monitor) Statuses() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.last.Sessions)
}

// logChanges logs each change once, and reports whether there was any.
func (m *Monitor) logChanges(before, now []Status) bool {
	was := map[string]Status{}
	for _, s := range before {
		was[s.Name] = s
	}
	changed := len(before) != len(now)
	for _, s := range now {
		o, known := was[s.Name]
		if known && o.State == s.State && o.Remote == s.Remote && o.SwitchedOff == s.SwitchedOff && o.Ups == s.Ups && o.Failures == s.Failures && o.Error == s.Error {
			continue
		}
		changed = true
		switch {
		case s.Cause != NoCause:
			m.config.Log.Warn("BFD session cannot come up", "peer", s.Name, "error", s.Error)
		case known || s.State != Down:
			m.config.Log.Info("BFD session", "peer", s.Name, "state", s.State.String(), "why", s.Diagnostic.String(),
				"neighbor", s.Remote.String(), "failures", s.Failures)
		}
	}
	return changed
}

var (
	upDesc       = prometheus.NewDesc("holdfast_bfd_session_up", "1 if the BFD session is up.", []string{"peer"}, nil)
	upsDesc      = prometheus.NewDesc("holdfast_bfd_ups_total", "Times that the BFD session came up.", []string{"peer"}, nil)
	failuresDesc = prometheus.NewDesc("holdfast_bfd_failures_total",
		"Times that the BFD session fell; not counted if one of both sides was switched off.", []string{"peer"}, nil)
	packetsDesc = prometheus.NewDesc("holdfast_bfd_packets_total",
		"BFD packets by direction: sent, received, or rejected: from the peer and not acceptable.", []string{"peer", "direction"}, nil)
	detectionDesc = prometheus.NewDesc("holdfast_bfd_detection_seconds",
		"Silence of the peer after which the BFD session falls.", []string{"peer"}, nil)
)

// Describe implements prometheus.Collector.
func (m *Monitor) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{upDesc, upsDesc, failuresDesc, packetsDesc, detectionDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Monitor) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	n, known := m.last, m.known
	m.mu.Unlock()
	if !known {
		return
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, s := range n.Sessions {
		up := 0.
		if s.State == Up {
			up = 1
		}
		ch <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, up, s.Name)
		ch <- prometheus.MustNewConstMetric(detectionDesc, prometheus.GaugeValue, s.Detection.Seconds(), s.Name)
		counter(upsDesc, s.Ups, s.Name)
		counter(failuresDesc, s.Failures, s.Name)
		counter(packetsDesc, s.Sent, s.Name, "sent")
		counter(packetsDesc, s.Received, s.Name, "received")
		counter(packetsDesc, s.Rejected, s.Name, "rejected")
	}
}
