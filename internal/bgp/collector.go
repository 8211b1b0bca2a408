package bgp

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The kinds of repairs.
const (
	kindRoute = "bgp_route"
	kindPeer  = "bgp_peer"
)

// metrics describe the values read at each scrape.
type metrics struct {
	// repairs has a Desc for each kind, with the kind as constant label, so that
	// collectors of other packages can add their own kinds to the same metric.
	repairs                                                                                        map[string]*prometheus.Desc
	up, advertised, ignored, updates, sent, received, restarts, quarantined, ups, failures, damped *prometheus.Desc
}

func newMetrics() metrics {
	byPeer := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("holdfast_bgp_"+name, help, []string{"peer"}, nil)
	}
	repairs := map[string]*prometheus.Desc{}
	for _, kind := range []string{kindRoute, kindPeer} {
		repairs[kind] = prometheus.NewDesc("holdfast_repairs_total", "Repairs of drift, by kind.", nil, prometheus.Labels{"kind": kind})
	}
	return metrics{
		repairs:     repairs,
		up:          byPeer("session_up", "Whether the session with a peer is established."),
		advertised:  byPeer("advertised_routes", "Routes advertised to a peer."),
		ignored:     byPeer("ignored_routes", "Routes that a peer sent; none is used."),
		updates:     byPeer("updates_sent_total", "UPDATE messages sent to a peer."),
		sent:        byPeer("notifications_sent_total", "NOTIFICATION messages sent to a peer."),
		received:    byPeer("notifications_received_total", "NOTIFICATION messages received from a peer."),
		ups:         byPeer("session_ups_total", "Times that the session with a peer came up."),
		failures:    byPeer("session_failures_total", "Times that the session with a peer fell, unless this node closed it on purpose."),
		damped:      byPeer("session_damped", "Whether a peer waits to be dialled, because its session fell too often."),
		restarts:    byPeer("engine_restarts_total", "Deaths of the BGP engine of a peer."),
		quarantined: byPeer("engine_quarantined", "Whether a peer has no BGP engine, because it died too often."),
	}
}

// Describe implements prometheus.Collector.
func (s *Speaker) Describe(ch chan<- *prometheus.Desc) {
	m := s.metrics
	for _, d := range m.repairs {
		ch <- d
	}
	for _, d := range []*prometheus.Desc{m.up, m.advertised, m.ignored, m.updates, m.sent, m.received, m.restarts, m.quarantined, m.ups, m.failures, m.damped} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It shows what the engines reported last, a second ago at most.
func (s *Speaker) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.metrics
	for kind, n := range map[string]uint64{kindRoute: s.repairs.RouteRepairs, kindPeer: s.repairs.PeerRepairs} {
		ch <- prometheus.MustNewConstMetric(m.repairs[kind], prometheus.CounterValue, float64(n))
	}
	for _, one := range s.states() {
		emit := func(d *prometheus.Desc, t prometheus.ValueType, v float64) {
			ch <- prometheus.MustNewConstMetric(d, t, v, one.Peer)
		}
		emit(m.up, prometheus.GaugeValue, number(one.State == Established))
		r := s.record(one.Peer)
		emit(m.ups, prometheus.CounterValue, float64(r.total.Ups))
		emit(m.failures, prometheus.CounterValue, float64(r.failures))
		emit(m.damped, prometheus.GaugeValue, number(r.falls.rests(time.Now())))
		emit(m.advertised, prometheus.GaugeValue, float64(one.Advertised))
		emit(m.ignored, prometheus.GaugeValue, float64(r.total.Ignored))
		emit(m.updates, prometheus.CounterValue, float64(r.total.Updates))
		emit(m.sent, prometheus.CounterValue, float64(r.total.Sent))
		emit(m.received, prometheus.CounterValue, float64(r.total.Received))
		emit(m.restarts, prometheus.CounterValue, float64(r.restarts))
		emit(m.quarantined, prometheus.GaugeValue, number(one.Quarantined))
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
