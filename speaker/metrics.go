package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/members"
)

var membersDesc = prometheus.NewDesc("holdfast_members",
	"Speakers by what this one knows of them, itself included: alive, held (down for a while), mute, dead, left or unknown.",
	[]string{"state"}, nil)

// Describe implements prometheus.Collector.
func (w *syncer) Describe(ch chan<- *prometheus.Desc) {
	ch <- membersDesc
	heartbeat.Describe(ch)
}

// Collect implements prometheus.Collector from the membership at scrape time.
func (w *syncer) Collect(ch chan<- prometheus.Metric) {
	m := w.members.Load()
	if m == nil {
		return
	}
	count := map[heartbeat.Status]int{}
	for _, member := range m.View().Members {
		count[member.Status]++
	}
	for s := heartbeat.Unknown; s <= heartbeat.Left; s++ {
		ch <- prometheus.MustNewConstMetric(membersDesc, prometheus.GaugeValue, float64(count[s]), s.String())
	}
	m.Collect(ch)
}

// view is what is known of the speakers, empty while the membership has not started.
func (w *syncer) view() members.View {
	if m := w.members.Load(); m != nil {
		return m.View()
	}
	return members.View{}
}

// Valid is the lease of the responder: what was planned last still holds.
func (w *syncer) Valid() bool {
	m := w.members.Load()
	return m != nil && m.Valid()
}
