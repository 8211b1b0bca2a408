package main

import (
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/prometheus/client_golang/prometheus"
)

var (
	membersDesc = prometheus.NewDesc("holdfast_members",
		"Living speakers, as this one sees them.", nil, nil)
	problemsDesc = prometheus.NewDesc("holdfast_problems",
		"Problems of this node that a user must mend.", []string{"kind", "reason"}, nil)
)

// nodeReasons are all that a speaker may have to say of its node.
var nodeReasons = []lb.Reason{lb.FilterNotEnforceable, lb.FilterNotInForce, lb.StrictARPMissing}

// Describe implements prometheus.Collector.
func (w *syncer) Describe(ch chan<- *prometheus.Desc) {
	ch <- membersDesc
	ch <- problemsDesc
}

// Collect implements prometheus.Collector from the membership at scrape time, and from the last run.
func (w *syncer) Collect(ch chan<- prometheus.Metric) {
	alive := 0
	if m := w.members.Load(); m != nil {
		alive = len(m.Alive())
	}
	ch <- prometheus.MustNewConstMetric(membersDesc, prometheus.GaugeValue, float64(alive))
	count := map[lb.Reason]int{}
	if last := w.last.Load(); last != nil {
		for _, p := range last.Problems {
			count[p.Reason]++
		}
	}
	for _, reason := range nodeReasons {
		ch <- prometheus.MustNewConstMetric(problemsDesc, prometheus.GaugeValue, float64(count[reason]), config.KindNode, string(reason))
	}
}
