package daemon

import (
	"github.com/holdfast-lb/holdfast/internal/child"
	"github.com/prometheus/client_golang/prometheus"
)

var buildDesc = prometheus.NewDesc("holdfast_build_info", "The build of the program; the value is always 1.", nil, child.BuildLabels())

// BuildInfo is a metric that names the build by its labels.
func BuildInfo() prometheus.Collector { return buildInfo{} }

type buildInfo struct{}

// Describe implements prometheus.Collector.
func (buildInfo) Describe(ch chan<- *prometheus.Desc) { ch <- buildDesc }

// Collect implements prometheus.Collector.
func (buildInfo) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(buildDesc, prometheus.GaugeValue, 1)
}
