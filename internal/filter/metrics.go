package filter

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are the events that no state shows.
type counts struct {
	repairs atomic.Uint64
}

// State is what /debug/state shows.
func (t *Table) State() any { return nil }

// Describe implements prometheus.Collector.
func (t *Table) Describe(ch chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (t *Table) Collect(ch chan<- prometheus.Metric) {}
