package unnumbered

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are the messages of one link.
type counts struct{ sent, received, rejected atomic.Uint64 }

type metrics struct {
	messages *prometheus.Desc
	mu       *sync.Mutex
	byLink   map[string]*counts
}

func newMetrics() metrics {
	return metrics{
		messages: prometheus.NewDesc("holdfast_bgp_router_discovery_messages_total",
			"Router Advertisements and Solicitations on links of unnumbered peers by direction: sent, received, or rejected.", []string{"link", "direction"}, nil),
		mu: new(sync.Mutex), byLink: map[string]*counts{},
	}
}

// count returns the counters of a link.
func (m metrics) count(link string) *counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byLink[link] == nil {
		m.byLink[link] = &counts{}
	}
	return m.byLink[link]
}

// Describe implements prometheus.Collector.
func (f *Finder) Describe(ch chan<- *prometheus.Desc) { ch <- f.metrics.messages }

// Collect implements prometheus.Collector.
func (f *Finder) Collect(ch chan<- prometheus.Metric) {
	m := f.metrics
	m.mu.Lock()
	defer m.mu.Unlock()
	for link, c := range m.byLink {
		for direction, n := range map[string]uint64{"sent": c.sent.Load(), "received": c.received.Load(), "rejected": c.rejected.Load()} {
			ch <- prometheus.MustNewConstMetric(m.messages, prometheus.CounterValue, float64(n), link, direction)
		}
	}
}
