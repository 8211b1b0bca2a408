package main

import "github.com/prometheus/client_golang/prometheus"

var (
	unreachableDesc = prometheus.NewDesc("holdfast_unreachable_nodes",
		"Nodes that most speakers cannot reach: their endpoints are withdrawn, or spared because too many nodes fell silent at once.", []string{"endpoints"}, nil)
	withdrawnDesc = prometheus.NewDesc("holdfast_endpoints_withdrawn_total",
		"Pods on dead nodes that were marked not ready.", nil, nil)
	restoredDesc = prometheus.NewDesc("holdfast_endpoints_restored_total",
		"Pods that were marked not ready and are ready again by our doing.", nil, nil)
)

// Describe implements prometheus.Collector.
func (w *withdrawer) Describe(ch chan<- *prometheus.Desc) {
	ch <- unreachableDesc
	ch <- withdrawnDesc
	ch <- restoredDesc
}

// Collect implements prometheus.Collector. A replica that does not lead counts no nodes.
func (w *withdrawer) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(withdrawnDesc, prometheus.CounterValue, float64(w.withdrawn.Load()))
	ch <- prometheus.MustNewConstMetric(restoredDesc, prometheus.CounterValue, float64(w.restored.Load()))
	if d := w.last.Load(); d != nil {
		ch <- prometheus.MustNewConstMetric(unreachableDesc, prometheus.GaugeValue, float64(len(d.Withdraw)), "withdrawn")
		ch <- prometheus.MustNewConstMetric(unreachableDesc, prometheus.GaugeValue, float64(len(d.Spared)), "spared")
	}
}
