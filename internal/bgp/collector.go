package bgp

import (
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// repairs counts repairs by kind.
type repairs struct {
	mu     sync.Mutex
	byKind map[string]int
}

func (r *repairs) add(done changes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKind == nil {
		r.byKind = map[string]int{}
	}
	for kind, n := range done {
		r.byKind[kind] += n
	}
}

func (r *repairs) read() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]int{kindRoute: 0, kindPeer: 0, kindPolicy: 0}
	maps.Copy(all, r.byKind)
	return all
}

// metrics describe the values read at each scrape.
type metrics struct {
	// repairs has a Desc for each kind, with the kind as constant label, so that
	// collectors of other packages can add their own kinds to the same metric.
	repairs                                          map[string]*prometheus.Desc
	up, advertised, ignored, updates, sent, received *prometheus.Desc
}

func newMetrics() metrics {
	byPeer := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("holdfast_bgp_"+name, help, []string{"peer"}, nil)
	}
	repairs := map[string]*prometheus.Desc{}
	for _, kind := range []string{kindRoute, kindPeer, kindPolicy} {
		repairs[kind] = prometheus.NewDesc("holdfast_repairs_total", "Repairs of drift, by kind.", nil, prometheus.Labels{"kind": kind})
	}
	return metrics{
		repairs:    repairs,
		up:         byPeer("session_up", "Whether the session with a peer is established."),
		advertised: byPeer("advertised_routes", "Routes advertised to a peer."),
		ignored:    byPeer("ignored_routes", "Routes that a peer sent; none is used."),
		updates:    byPeer("updates_sent_total", "UPDATE messages sent to a peer."),
		sent:       byPeer("notifications_sent_total", "NOTIFICATION messages sent to a peer."),
		received:   byPeer("notifications_received_total", "NOTIFICATION messages received from a peer."),
	}
}

// Describe implements prometheus.Collector.
func (s *Speaker) Describe(ch chan<- *prometheus.Desc) {
	m := s.metrics
	for _, d := range m.repairs {
		ch <- d
	}
	for _, d := range []*prometheus.Desc{m.up, m.advertised, m.ignored, m.updates, m.sent, m.received} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It reads from GoBGP.
func (s *Speaker) Collect(ch chan<- prometheus.Metric) {
	repaired := s.repairs.read()
	for kind, d := range s.metrics.repairs {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(repaired[kind]))
	}
	counts := s.advertised()
	listed := map[string]bool{}
	for _, p := range s.list() {
		session := s.session(p)
		emit := func(d *prometheus.Desc, t prometheus.ValueType, v float64) {
			ch <- prometheus.MustNewConstMetric(d, t, v, session.Peer)
		}
		up := 0.0
		if session.State == Established {
			up = 1
		}
		emit(s.metrics.up, prometheus.GaugeValue, up)
		emit(s.metrics.advertised, prometheus.GaugeValue, float64(counts[session.Address]))
		emit(s.metrics.ignored, prometheus.GaugeValue, float64(ignored(p.Peer)))
		emit(s.metrics.updates, prometheus.CounterValue, float64(p.past.updates+p.State.Messages.Sent.Update))
		emit(s.metrics.sent, prometheus.CounterValue, float64(p.past.sent+p.State.Messages.Sent.Notification))
		emit(s.metrics.received, prometheus.CounterValue, float64(p.past.received+p.State.Messages.Received.Notification))
		listed[session.Peer] = true
	}
	for _, w := range s.waitingSessions() {
		if !listed[w.Peer] {
			ch <- prometheus.MustNewConstMetric(s.metrics.up, prometheus.GaugeValue, 0, w.Peer)
		}
	}
}
