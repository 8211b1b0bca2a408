package layer2

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Results of sending.
const (
	sent = iota
	failed

	results
)

// Results of a handover.
const (
	// heard: the new owner was heard.
	heard = iota
	// unheard: no new owner was heard in time.
	unheard

	handovers
)

// Kinds of repairs.
const (
	repairSocket = iota
	repairGroup
	// repairLink: a link was gone and is back, was recreated, or was renamed.
	repairLink
	repairMAC
	repairConflict

	repairs
)

// counts count events that the state does not show.
type counts struct {
	requests      [kinds][outcomes]atomic.Uint64
	answers       [kinds][results]atomic.Uint64
	announcements [families][results]atomic.Uint64
	probes        [kinds][results]atomic.Uint64
	takeovers     [families]atomic.Uint64
	conflicts     [families]atomic.Uint64
	handovers     [handovers]atomic.Uint64
	repairs       [repairs]atomic.Uint64
}

// Describe implements prometheus.Collector.
func (r *Responder) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(r, ch) }

// Collect implements prometheus.Collector.
func (r *Responder) Collect(ch chan<- prometheus.Metric) {
	out := series{ch}
	for i, proto := range r.protocols {
		r.collectFrames(out, i, proto.name)
	}
	for i, proto := range r.protocols[:families] {
		r.collectMoves(out, i, proto.name)
	}
	r.collectAddresses(out)
	r.collectRepairs(out)

	for result, label := range [handovers]string{heard: "heard", unheard: "unheard"} {
		out.count("handovers_total", "Addresses that this node left to another one, which was heard or not.",
			&r.counts.handovers[result], "result", label)
	}
}

// series sends metrics of layer 2 to a collector's channel. Labels are pairs of a name and a value.
type series struct{ ch chan<- prometheus.Metric }

// add sends one metric.
func (s series) add(name, help string, kind prometheus.ValueType, value float64, labels ...string) {
	pairs := prometheus.Labels{}
	for pair := range slices.Chunk(labels, 2) {
		pairs[pair[0]] = pair[1]
	}

	desc := prometheus.NewDesc("holdfast_l2_"+name, help, nil, pairs)
	s.ch <- prometheus.MustNewConstMetric(desc, kind, value)
}

// count sends a counter.
func (s series) count(name, help string, n *atomic.Uint64, labels ...string) {
	s.add(name, help, prometheus.CounterValue, float64(n.Load()), labels...)
}

// gauge sends a gauge.
func (s series) gauge(name, help string, value int, labels ...string) {
	s.add(name, help, prometheus.GaugeValue, float64(value), labels...)
}

// sending has the labels of results of frames that this node sends.
var sending = [results]string{sent: "sent", failed: "failed"}

// collectFrames collects what became of the frames of a protocol, by its index.
func (r *Responder) collectFrames(out series, i int, family string) {
	for o := range outcomes {
		out.count("requests_total", "Frames received, by what became of them.",
			&r.counts.requests[i][o], "family", family, "result", o.String())
	}

	for result, label := range sending {
		out.count("answers_total", "Answers to requests.",
			&r.counts.answers[i][result], "family", family, "result", label)
		out.count("probes_total", "Questions whether anybody has an address.",
			&r.counts.probes[i][result], "family", family, "result", label)
	}
}

// collectMoves collects the announcements, takeovers and conflicts of a family, by its index.
func (r *Responder) collectMoves(out series, i int, family string) {
	for result, label := range sending {
		out.count("announcements_total", "Gratuitous ARP packets and unsolicited neighbor advertisements.",
			&r.counts.announcements[i][result], "family", family, "result", label)
	}

	out.count("takeovers_total", "Addresses that this node began to announce.",
		&r.counts.takeovers[i], "family", family)
	out.count("conflicts_total",
		"Claims of an address by other machines, and by speakers that answer for it beyond a move.",
		&r.counts.conflicts[i], "family", family)
}

// collectAddresses collects the numbers of addresses that are answered, and that are in conflict.
func (r *Responder) collectAddresses(out series) {
	answered, conflicting := map[lb.Family]int{}, map[lb.Family]int{}
	for _, a := range r.State().Addresses {
		if a.Answered {
			answered[lb.FamilyOf(a.Address)]++
		}
		if len(a.Conflicts) > 0 {
			conflicting[lb.FamilyOf(a.Address)]++
		}
	}

	for _, proto := range r.protocols[:families] {
		family := lb.Family(proto.name)
		out.gauge("announced_addresses", "Addresses that are answered on at least one link.",
			answered[family], "family", proto.name)
		out.gauge("conflicting_addresses",
			"Addresses that another machine was seen to claim lately, or a speaker beyond a move.",
			conflicting[family], "family", proto.name)
	}
}

// collectRepairs collects the repairs of drift.
func (r *Responder) collectRepairs(out series) {
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
		value := float64(r.counts.repairs[kind].Load())
		out.ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value)
	}
}
