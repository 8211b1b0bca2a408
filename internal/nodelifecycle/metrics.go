package nodelifecycle

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	unreachableDesc = prometheus.NewDesc("holdfast_unreachable_nodes",
		"Nodes that most speakers cannot reach: "+
			"their endpoints are withdrawn, or spared because too many nodes fell silent at once.",
		[]string{"endpoints"}, nil)
	withdrawnDesc = prometheus.NewDesc("holdfast_endpoints_withdrawn_total",
		"Pods on dead nodes that were marked not ready.", nil, nil)
	restoredDesc = prometheus.NewDesc("holdfast_endpoints_restored_total",
		"Pods that were marked not ready and were restored by Holdfast.", nil, nil)
)

// metrics are the metrics of a Controller.
type metrics struct {
	// last is the last decision; nil while another replica leads.
	last atomic.Pointer[decision]
	// withdrawn counts the pods that were marked not ready.
	withdrawn atomic.Int64
	// restored counts the pods that were marked ready again.
	restored atomic.Int64
}

// Describe implements prometheus.Collector. It describes nothing, because only a leader has all of the metrics.
func (m *metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. Only a leader counts unreachable nodes.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n int64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
	}
	counter(withdrawnDesc, m.withdrawn.Load())
	counter(restoredDesc, m.restored.Load())

	d := m.last.Load()
	if d == nil {
		return
	}

	gauge := func(nodes []string, endpoints string) {
		ch <- prometheus.MustNewConstMetric(unreachableDesc, prometheus.GaugeValue, float64(len(nodes)), endpoints)
	}
	gauge(d.withdraw, "withdrawn")
	gauge(d.spared, "spared")
}
