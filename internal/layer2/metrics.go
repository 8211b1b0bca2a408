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

// Collect implements prometheus.Collector. Descriptions are cheap, and only a scrape needs them.
func (r *Responder) Collect(ch chan<- prometheus.Metric) {
	metric := func(name, help string, kind prometheus.ValueType, value float64, labels ...string) {
		pairs := prometheus.Labels{}
		for pair := range slices.Chunk(labels, 2) {
			pairs[pair[0]] = pair[1]
		}

		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("holdfast_l2_"+name, help, nil, pairs), kind, value)
	}

	count := func(name, help string, n *atomic.Uint64, labels ...string) {
		metric(name, help, prometheus.CounterValue, float64(n.Load()), labels...)
	}

	sending := [results]string{sent: "sent", failed: "failed"}
	for i, proto := range r.protocols {
		for o := range outcomes {
			count(
				"requests_total",
				"Frames received, by what became of them.",
				&r.counts.requests[i][o],
				"family",
				proto.name,
				"result",
				o.String(),
			)
		}

		for result, label := range sending {
			count(
				"answers_total",
				"Answers to requests.",
				&r.counts.answers[i][result],
				"family",
				proto.name,
				"result",
				label,
			)

			count(
				"probes_total",
				"Questions whether anybody has an address.",
				&r.counts.probes[i][result],
				"family",
				proto.name,
				"result",
				label,
			)
		}
	}

	addresses, conflicting := make(map[lb.Family]float64), make(map[lb.Family]float64)
	for _, a := range r.State().Addresses {
		if a.Answered {
			addresses[lb.FamilyOf(a.Address)]++
		}

		if len(a.Conflicts) > 0 {
			conflicting[lb.FamilyOf(a.Address)]++
		}
	}

	for i, proto := range r.protocols[:families] {
		family := proto.name
		for result, label := range sending {
			count(
				"announcements_total",
				"Gratuitous ARP packets and unsolicited neighbor advertisements.",
				&r.counts.announcements[i][result],
				"family",
				family,
				"result",
				label,
			)
		}

		count(
			"takeovers_total",
			"Addresses that this node began to announce.",
			&r.counts.takeovers[i],
			"family",
			family,
		)

		count(
			"conflicts_total",
			"Claims of an address by other machines, and by speakers that answer for it beyond a move.",
			&r.counts.conflicts[i],
			"family",
			family,
		)

		metric(
			"announced_addresses",
			"Addresses that are answered on at least one link.",
			prometheus.GaugeValue,
			addresses[lb.Family(family)],
			"family",
			family,
		)

		metric(
			"conflicting_addresses",
			"Addresses that another machine was seen to claim lately, or a speaker beyond a move.",
			prometheus.GaugeValue,
			conflicting[lb.Family(family)],
			"family",
			family,
		)
	}

	for result, label := range [handovers]string{heard: "heard", unheard: "unheard"} {
		count(
			"handovers_total",
			"Addresses that this node left to another one, which was heard or not.",
			&r.counts.handovers[result],
			"result",
			label,
		)
	}

	for kind, label := range [repairs]string{
		repairSocket:   "l2_socket",
		repairGroup:    "l2_group",
		repairLink:     "l2_link",
		repairMAC:      "l2_mac",
		repairConflict: "l2_conflict",
	} {
		// A constant label, so that collectors of other packages can add their own kinds to the same metric.
		desc := prometheus.NewDesc(
			"holdfast_repairs_total",
			"Repairs of drift, by kind.",
			nil,
			prometheus.Labels{"kind": label},
		)

		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(r.counts.repairs[kind].Load()))
	}
}
