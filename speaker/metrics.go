package main

import "github.com/prometheus/client_golang/prometheus"

var membersDesc = prometheus.NewDesc("holdfast_members",
	"Living speakers, as this one sees them.", nil, nil)

// Describe implements prometheus.Collector.
func (w *syncer) Describe(ch chan<- *prometheus.Desc) { ch <- membersDesc }

// Collect implements prometheus.Collector from the membership at scrape time.
func (w *syncer) Collect(ch chan<- prometheus.Metric) {
	alive := 0
	if m := w.members.Load(); m != nil {
		alive = len(m.Alive())
	}
	ch <- prometheus.MustNewConstMetric(membersDesc, prometheus.GaugeValue, float64(alive))
}
