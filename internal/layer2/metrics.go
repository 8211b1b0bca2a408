package layer2

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Results of sending a frame.
const (
	sent = iota
	failed

	sendResults
)

// Results of a handover.
const (
	// handoverHeard: the new owner was heard.
	handoverHeard = iota
	// handoverUnheard: no new owner was heard in time.
	handoverUnheard

	handoverResults
)

// Kinds of repairs.
const (
	repairSocket = iota
	repairGroup
	// repairLink: a link has returned, was recreated, or was renamed.
	repairLink
	repairMAC
	repairConflict

	repairs
)

// counters count events that the state does not show.
type counters struct {
	requests      [protocolCount][frameResults]atomic.Uint64
	answers       [protocolCount][sendResults]atomic.Uint64
	announcements [familyCount][sendResults]atomic.Uint64
	probes        [protocolCount][sendResults]atomic.Uint64
	takeovers     [familyCount]atomic.Uint64
	conflicts     [familyCount]atomic.Uint64
	handovers     [handoverResults]atomic.Uint64
	repairs       [repairs]atomic.Uint64
}

// Describe implements prometheus.Collector.
func (r *Responder) Describe(ch chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(r, ch)
}

// Collect implements prometheus.Collector.
func (r *Responder) Collect(ch chan<- prometheus.Metric) {
	out := metricSink{ch}
	for i, proto := range r.protocols {
		r.collectFrames(out, i, proto.name)
	}

	for i, proto := range r.protocols[:familyCount] {
		r.collectMoves(out, i, proto.name)
	}

	r.collectAddresses(out)
	r.collectRepairs(out)

	for result, label := range [handoverResults]string{handoverHeard: "heard", handoverUnheard: "unheard"} {
		out.count(
			"handovers_total",
			"Addresses that this node left to another node, by whether it heard that node.",
			&r.counters.handovers[result],
			"result", label,
		)
	}
}

// metricSink sends metrics of layer 2 to a collector's channel. Labels are pairs of a name and a value.
type metricSink struct{ ch chan<- prometheus.Metric }

// add sends one metric.
func (s metricSink) add(name, help string, kind prometheus.ValueType, value float64, labels ...string) {
	pairs := prometheus.Labels{}
	for pair := range slices.Chunk(labels, 2) {
		pairs[pair[0]] = pair[1]
	}

	desc := prometheus.NewDesc("holdfast_l2_"+name, help, nil, pairs)
	s.ch <- prometheus.MustNewConstMetric(desc, kind, value)
}

// count sends a counter.
func (s metricSink) count(name, help string, n *atomic.Uint64, labels ...string) {
	s.add(name, help, prometheus.CounterValue, float64(n.Load()), labels...)
}

// gauge sends a gauge.
func (s metricSink) gauge(name, help string, value int, labels ...string) {
	s.add(name, help, prometheus.GaugeValue, float64(value), labels...)
}

// sendLabels has the labels of the results of sending a frame.
var sendLabels = [sendResults]string{sent: "sent", failed: "failed"}

// collectFrames collects the results of the frames of a protocol, by its index.
func (r *Responder) collectFrames(out metricSink, i int, family string) {
	for result := range frameResults {
		out.count(
			"requests_total",
			"Frames received, by result.",
			&r.counters.requests[i][result],
			"family", family,
			"result", result.String(),
		)
	}

	for result, label := range sendLabels {
		out.count(
			"answers_total",
			"Answers to requests.",
			&r.counters.answers[i][result],
			"family", family,
			"result", label,
		)
		out.count(
			"probes_total",
			"Questions whether another machine has an address.",
			&r.counters.probes[i][result],
			"family", family,
			"result", label,
		)
	}
}

// collectMoves collects the announcements, takeovers and conflicts of a family, by its index.
func (r *Responder) collectMoves(out metricSink, i int, family string) {
	for result, label := range sendLabels {
		out.count(
			"announcements_total",
			"Gratuitous ARP packets and unsolicited neighbor advertisements.",
			&r.counters.announcements[i][result],
			"family", family,
			"result", label,
		)
	}

	out.count(
		"takeovers_total",
		"Addresses that this node began to announce.",
		&r.counters.takeovers[i],
		"family", family,
	)
	out.count(
		"conflicts_total",
		"Claims of an address by other machines, and by speakers that answer for it for longer than a move takes.",
		&r.counters.conflicts[i],
		"family", family,
	)
}

// collectAddresses collects the numbers of addresses that are answered, and that are in conflict.
func (r *Responder) collectAddresses(out metricSink) {
	answered := map[lb.Family]int{}
	conflicting := map[lb.Family]int{}
	for _, a := range r.State().Addresses {
		if a.Answered {
			answered[lb.FamilyOf(a.Address)]++
		}

		if len(a.Conflicts) > 0 {
			conflicting[lb.FamilyOf(a.Address)]++
		}
	}

	for _, proto := range r.protocols[:familyCount] {
		family := lb.Family(proto.name)
		out.gauge(
			"announced_addresses",
			"Addresses that are answered on at least one link.",
			answered[family],
			"family", proto.name,
		)
		out.gauge(
			"conflicting_addresses",
			"Addresses that another machine claimed recently, or a speaker for longer than a move takes.",
			conflicting[family],
			"family", proto.name,
		)
	}
}

// collectRepairs collects the repairs of drift.
func (r *Responder) collectRepairs(out metricSink) {
	for kind, label := range [repairs]string{
		repairSocket:   "l2_socket",
		repairGroup:    "l2_group",
		repairLink:     "l2_link",
		repairMAC:      "l2_mac",
		repairConflict: "l2_conflict",
	} {
		// A constant label, so that collectors of other packages can add their own kinds to the same metric.
		labels := prometheus.Labels{"kind": label}
		desc := prometheus.NewDesc("holdfast_repairs_total", "Repairs of drift, by kind.", nil, labels)
		value := float64(r.counters.repairs[kind].Load())
		out.ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value)
	}
}
