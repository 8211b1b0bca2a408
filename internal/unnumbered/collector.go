package unnumbered

import "github.com/prometheus/client_golang/prometheus"

// The directions of messages.
const (
	sentMessages     = "sent"
	receivedMessages = "received"
	rejectedMessages = "rejected"
)

func newMessages() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_bgp_router_discovery_messages_total",
		Help: "Router Advertisements and Solicitations on links of unnumbered peers by direction: sent, received, or rejected.",
	}, []string{"link", "direction"})
}

// Describe implements prometheus.Collector.
func (f *Finder) Describe(ch chan<- *prometheus.Desc) { f.messages.Describe(ch) }

// Collect implements prometheus.Collector.
func (f *Finder) Collect(ch chan<- prometheus.Metric) { f.messages.Collect(ch) }
