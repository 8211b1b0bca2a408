package heartbeat

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/detect"
)

// counters are written by the heartbeat thread, and read by a scrape in the speaker's process.
type counters struct {
	received, rejected                             atomic.Uint64
	suspected, cleared, confirmed, refuted, lapsed atomic.Uint64
	overruns, restarts                             atomic.Uint64
	// latest is how late the latest heartbeat of the last one to two minutes was.
	latest atomic.Int64
}

// add counts what the detector did between two of its Stats.
func (c *counters) add(before, after detect.Stats) {
	c.suspected.Add(after.Suspected - before.Suspected)
	c.cleared.Add(after.Cleared - before.Cleared)
	c.confirmed.Add(after.Confirmed - before.Confirmed)
	c.refuted.Add(after.Refuted - before.Refuted)
	c.lapsed.Add(after.Lapsed - before.Lapsed)
}

// Describe implements prometheus.Collector.
func (h *Heartbeat) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(h, ch) }

// Collect implements prometheus.Collector.
func (h *Heartbeat) Collect(ch chan<- prometheus.Metric) {
	s := h.shared
	metric := func(name, help string, kind prometheus.ValueType, value float64, labels prometheus.Labels) {
		description := prometheus.NewDesc("holdfast_heartbeat_"+name, help, nil, labels)
		ch <- prometheus.MustNewConstMetric(description, kind, value)
	}
	count := func(name, help string, n *atomic.Uint64) {
		metric(name, help, prometheus.CounterValue, float64(n.Load()), nil)
	}

	for result, n := range map[string]*atomic.Uint64{"cleared": &s.cleared, "confirmed": &s.confirmed} {
		metric(
			"suspicions_total",
			"Suspicions of nodes that this one watches, by result: cleared or confirmed.",
			prometheus.CounterValue,
			float64(n.Load()),
			prometheus.Labels{"result": result},
		)
	}
	count("false_suspicions_total", "Times that others declared this node dead while it was running.", &s.refuted)
	count(
		"lapses_total",
		"Times that this node did not run for so long that others may have declared it dead.",
		&s.lapsed,
	)
	count("received_total", "Packets received from peers.", &s.received)
	count("rejected_total", "Packets that passed the socket filter and were not from a peer.", &s.rejected)
	count(
		"overruns_total",
		"Times that the heartbeat process exceeded its CPU budget and lost real-time priority for a while.",
		&s.overruns,
	)
	count(
		"restarts_total",
		"Times that the heartbeat process was started again: it ended, or it sent no heartbeats and was killed.",
		&s.restarts,
	)
	metric(
		"realtime",
		"1 if the heartbeat process has real-time priority.",
		prometheus.GaugeValue,
		map[bool]float64{true: 1}[s.realtime.Load()],
		nil,
	)
	metric(
		"lateness_seconds",
		"How late this node's latest heartbeat was, in the last one to two minutes.",
		prometheus.GaugeValue,
		time.Duration(s.latest.Load()).Seconds(),
		nil,
	)
}
