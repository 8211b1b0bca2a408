package filter

import (
	"github.com/prometheus/client_golang/prometheus"
)

type counts struct{}

// State is what /debug/state shows.
func (t *Table) State() any { return nil }

// Describe implements prometheus.Collector.
func (t *Table) Describe(ch chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (t *Table) Collect(ch chan<- prometheus.Metric) {}
