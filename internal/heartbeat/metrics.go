package heartbeat

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counters are written by the thread, and read by a scrape in the speaker's process.
type counters struct {
	received, rejected, refused                    atomic.Uint64
	suspected, cleared, confirmed, refuted, lapsed atomic.Uint64
	overruns, restarts                             atomic.Uint64
	// latest is how late the latest heartbeat of the last one to two minutes was.
	latest atomic.Int64
}

// metric is a value of what both processes share.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*shared) float64
}

func of(name, help string, labels prometheus.Labels, kind prometheus.ValueType, value func(*shared) float64) metric {
	return metric{prometheus.NewDesc("holdfast_heartbeat_"+name, help, nil, labels), kind, value}
}

func counter(name, help string, count func(*shared) *atomic.Uint64) metric {
	return of(name, help, nil, prometheus.CounterValue, func(s *shared) float64 { return float64(count(s).Load()) })
}

func suspicions(result string, count func(*shared) *atomic.Uint64) metric {
	return of("suspicions_total", "Suspicions of nodes that this one watches, by result: cleared or confirmed.", prometheus.Labels{"result": result},
		prometheus.CounterValue, func(s *shared) float64 { return float64(count(s).Load()) })
}

var metrics = []metric{
	suspicions("cleared", func(s *shared) *atomic.Uint64 { return &s.cleared }),
	suspicions("confirmed", func(s *shared) *atomic.Uint64 { return &s.confirmed }),
	counter("false_suspicions_total", "Times that others declared this node dead while it was running.", func(s *shared) *atomic.Uint64 { return &s.refuted }),
	counter("lapses_total", "Times that this node did not run for so long that others may have declared it dead.",
		func(s *shared) *atomic.Uint64 { return &s.lapsed }),
	counter("received_total", "Packets received from peers.", func(s *shared) *atomic.Uint64 { return &s.received }),
	counter("rejected_total", "Packets that passed the socket filter and were not from a peer.", func(s *shared) *atomic.Uint64 { return &s.rejected }),
	counter("overruns_total", "Times that the heartbeat process exceeded its CPU budget and lost real-time priority for a while.",
		func(s *shared) *atomic.Uint64 { return &s.overruns }),
	counter("restarts_total", "Times that the heartbeat process was started again: it ended, or it sent no heartbeats and was killed.",
		func(s *shared) *atomic.Uint64 { return &s.restarts }),
	of("realtime", "1 if the heartbeat process has real-time priority.", nil, prometheus.GaugeValue,
		func(s *shared) float64 { return map[bool]float64{true: 1}[s.realtime.Load()] }),
	of("lateness_seconds", "How late this node's latest heartbeat was, in the last one to two minutes.", nil, prometheus.GaugeValue,
		func(s *shared) float64 { return time.Duration(s.latest.Load()).Seconds() }),
}

// Describe implements prometheus.Collector.
func (h *Heartbeat) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(h, ch) }

// Collect implements prometheus.Collector.
func (h *Heartbeat) Collect(ch chan<- prometheus.Metric) {
	for _, m := range metrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(h.shared))
	}
}
