package heartbeat

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	gapName = "holdfast_heartbeat_gap_seconds"
	gapHelp = "Time between two packets of a node that this one watches, of all such nodes."
)

// metrics are written by the thread and read by whoever scrapes.
type metrics struct {
	gaps                                           prometheus.Histogram
	rejected                                       atomic.Uint64
	suspected, cleared, confirmed, refuted, lapsed atomic.Uint64
	filtered                                       atomic.Bool
	latest                                         atomic.Int64
}

func newMetrics() metrics {
	return metrics{gaps: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: gapName, Help: gapHelp,
		Buckets: []float64{.02, .04, .06, .08, .1, .125, .15, .2, .3, .5, 1, 5},
	})}
}

// take copies the counts out of the detector.
func (m *metrics) take(d *detector) {
	m.suspected.Store(d.counts.suspected)
	m.cleared.Store(d.counts.cleared)
	m.confirmed.Store(d.counts.confirmed)
	m.refuted.Store(d.counts.refuted)
	m.lapsed.Store(d.counts.lapsed)
	m.latest.Store(int64(max(d.latest, d.latestBefore)))
}

var (
	suspicionsDesc = prometheus.NewDesc("holdfast_heartbeat_suspicions_total",
		"Silences of nodes that this one watches, by what they turned out to be: cleared or confirmed.", []string{"result"}, nil)
	refutedDesc = prometheus.NewDesc("holdfast_heartbeat_false_suspicions_total",
		"Times that others called this node dead while it was running.", nil, nil)
	lapsesDesc = prometheus.NewDesc("holdfast_heartbeat_lapses_total",
		"Times that this node did not run for so long that others may have called it dead.", nil, nil)
	rejectedDesc = prometheus.NewDesc("holdfast_heartbeat_rejected_total",
		"Packets that passed the socket filter and were no peer's.", nil, nil)
	gapsDesc   = prometheus.NewDesc(gapName, gapHelp, nil, nil)
	latestDesc = prometheus.NewDesc("holdfast_heartbeat_lateness_seconds",
		"How late this node's latest beat was, of the last one to two minutes.", nil, nil)
	filteredDesc = prometheus.NewDesc("holdfast_heartbeat_filtered",
		"1 if the kernel drops what cannot be a peer's packet.", nil, nil)
	realtimeDesc = prometheus.NewDesc("holdfast_heartbeat_realtime",
		"1 if the heartbeat's thread has real-time priority.", nil, nil)
)

// Describe names the metrics of every Heartbeat, for a collector that is
// registered before there is one.
func Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{suspicionsDesc, refutedDesc, lapsesDesc, rejectedDesc, realtimeDesc, filteredDesc, latestDesc, gapsDesc} {
		ch <- d
	}
}

// Describe implements prometheus.Collector.
func (h *Heartbeat) Describe(ch chan<- *prometheus.Desc) { Describe(ch) }

// Collect implements prometheus.Collector.
func (h *Heartbeat) Collect(ch chan<- prometheus.Metric) {
	m := &h.metrics
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	counter(suspicionsDesc, m.cleared.Load(), "cleared")
	counter(suspicionsDesc, m.confirmed.Load(), "confirmed")
	counter(refutedDesc, m.refuted.Load())
	counter(lapsesDesc, m.lapsed.Load())
	counter(rejectedDesc, m.rejected.Load())
	for desc, is := range map[*prometheus.Desc]bool{realtimeDesc: h.View().Realtime, filteredDesc: m.filtered.Load()} {
		value := 0.
		if is {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	ch <- prometheus.MustNewConstMetric(latestDesc, prometheus.GaugeValue, time.Duration(m.latest.Load()).Seconds())
	m.gaps.Collect(ch)
}
