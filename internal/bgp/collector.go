package bgp

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// metric is a value of each peer.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(lb.Session, *record) float64
}

func byPeer(name, help string, kind prometheus.ValueType, value func(lb.Session, *record) float64) metric {
	return metric{prometheus.NewDesc("holdfast_bgp_"+name, help, []string{"peer"}, nil), kind, value}
}

const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue

var metrics = []metric{
	byPeer("session_up", "Whether the session with a peer is established.", gauge,
		func(s lb.Session, _ *record) float64 { return number(s.State == lb.Established) }),
	byPeer("advertised_routes", "Routes advertised to a peer.", gauge, func(s lb.Session, _ *record) float64 { return float64(s.Advertised) }),
	byPeer("ignored_routes", "Routes that a peer sent; none is used.", gauge, func(_ lb.Session, r *record) float64 { return float64(r.total.Ignored) }),
	byPeer("updates_sent_total", "UPDATE messages sent to a peer.", counter, func(_ lb.Session, r *record) float64 { return float64(r.total.Updates) }),
	byPeer("notifications_sent_total", "NOTIFICATION messages sent to a peer.", counter, func(_ lb.Session, r *record) float64 { return float64(r.total.Sent) }),
	byPeer("notifications_received_total", "NOTIFICATION messages received from a peer.", counter,
		func(_ lb.Session, r *record) float64 { return float64(r.total.Received) }),
	byPeer("session_ups_total", "Times that the session with a peer came up.", counter, func(_ lb.Session, r *record) float64 { return float64(r.total.Ups) }),
	byPeer("session_failures_total", "Times that the session with a peer fell, unless this node closed it on purpose.", counter,
		func(_ lb.Session, r *record) float64 { return float64(r.failures) }),
	byPeer("session_damped", "Whether a peer waits to be dialled, because its session fell or its engine died too often.", gauge,
		func(_ lb.Session, r *record) float64 { return number(r.trouble.rests(time.Now())) }),
	byPeer("engine_restarts_total", "Deaths of the BGP engine of a peer.", counter, func(_ lb.Session, r *record) float64 { return float64(r.restarts) }),
}

// Describe implements prometheus.Collector.
func (s *Speaker) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range metrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector. It shows what the engines reported last, a second ago at most.
func (s *Speaker) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.states() {
		for _, m := range metrics {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(one, s.record(one.Peer)), one.Peer)
		}
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
