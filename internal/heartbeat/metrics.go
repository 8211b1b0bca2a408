package heartbeat

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// gapBounds are the upper bounds of the buckets.
var gapBounds = [...]time.Duration{
	20 * time.Millisecond, 40 * time.Millisecond, 60 * time.Millisecond, 80 * time.Millisecond, 100 * time.Millisecond,
	125 * time.Millisecond, 150 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 5 * time.Second,
}

// gaps is a histogram that one thread writes and others read. It has no pointers, so that they may
// be in another process.
type gaps struct {
	// buckets count those between the bound before and their own; the last has the rest.
	buckets [len(gapBounds) + 1]atomic.Uint64
	sum     atomic.Int64
}

func (g *gaps) observe(d time.Duration) {
	n, _ := slices.BinarySearch(gapBounds[:], d)
	g.buckets[n].Add(1)
	g.sum.Add(int64(d))
}

func (g *gaps) metric() prometheus.Metric {
	var count uint64
	buckets := make(map[float64]uint64, len(gapBounds))
	for i, bound := range gapBounds {
		count += g.buckets[i].Load()
		buckets[bound.Seconds()] = count
	}
	count += g.buckets[len(gapBounds)].Load()
	return prometheus.MustNewConstHistogram(gapsDesc, count, time.Duration(g.sum.Load()).Seconds(), buckets)
}

// counters are written by the thread, and read by a scrape in the speaker's process.
type counters struct {
	gaps                                           gaps
	rejected, refused                              atomic.Uint64
	suspected, cleared, confirmed, refuted, lapsed atomic.Uint64
	filtered                                       atomic.Bool
	overruns, restarts                             atomic.Uint64
	// latest is how late the latest heartbeat of the last one to two minutes was.
	latest atomic.Int64
}

var (
	suspicionsDesc = prometheus.NewDesc("holdfast_heartbeat_suspicions_total",
		"Suspicions of nodes that this one watches, by result: cleared or confirmed.", []string{"result"}, nil)
	refutedDesc = prometheus.NewDesc("holdfast_heartbeat_false_suspicions_total",
		"Times that others declared this node dead while it was running.", nil, nil)
	lapsesDesc = prometheus.NewDesc("holdfast_heartbeat_lapses_total",
		"Times that this node did not run for so long that others may have declared it dead.", nil, nil)
	rejectedDesc = prometheus.NewDesc("holdfast_heartbeat_rejected_total",
		"Packets that passed the socket filter and were not from a peer.", nil, nil)
	gapsDesc = prometheus.NewDesc("holdfast_heartbeat_gap_seconds",
		"Time between two packets of a node that this one watches, over all such nodes.", nil, nil)
	latestDesc = prometheus.NewDesc("holdfast_heartbeat_lateness_seconds",
		"How late this node's latest heartbeat was, in the last one to two minutes.", nil, nil)
	filteredDesc = prometheus.NewDesc("holdfast_heartbeat_filtered",
		"1 if a socket filter drops packets before the heartbeat process reads them.", nil, nil)
	realtimeDesc = prometheus.NewDesc("holdfast_heartbeat_realtime",
		"1 if the heartbeat process has real-time priority.", nil, nil)
	overrunsDesc = prometheus.NewDesc("holdfast_heartbeat_overruns_total",
		"Times that the heartbeat process exceeded its CPU budget and lost real-time priority for a while.", nil, nil)
	restartsDesc = prometheus.NewDesc("holdfast_heartbeat_restarts_total",
		"Times that the heartbeat process was started again: it ended, or it sent no heartbeats and was killed.", nil, nil)
)

// Describe names the metrics of every Heartbeat, for a collector that is
// registered before there is one.
func Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		suspicionsDesc, refutedDesc, lapsesDesc, rejectedDesc, realtimeDesc, overrunsDesc, restartsDesc, filteredDesc, latestDesc, gapsDesc,
	} {
		ch <- d
	}
}

// Describe implements prometheus.Collector.
func (h *Heartbeat) Describe(ch chan<- *prometheus.Desc) { Describe(ch) }

// Collect implements prometheus.Collector.
func (h *Heartbeat) Collect(ch chan<- prometheus.Metric) {
	m := &h.shared.counters
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	counter(suspicionsDesc, m.cleared.Load(), "cleared")
	counter(suspicionsDesc, m.confirmed.Load(), "confirmed")
	counter(refutedDesc, m.refuted.Load())
	counter(lapsesDesc, m.lapsed.Load())
	counter(rejectedDesc, m.rejected.Load())
	counter(overrunsDesc, m.overruns.Load())
	counter(restartsDesc, m.restarts.Load())
	for desc, is := range map[*prometheus.Desc]bool{realtimeDesc: h.shared.realtime.Load(), filteredDesc: m.filtered.Load()} {
		value := 0.
		if is {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	ch <- prometheus.MustNewConstMetric(latestDesc, prometheus.GaugeValue, time.Duration(m.latest.Load()).Seconds())
	ch <- m.gaps.metric()
}
