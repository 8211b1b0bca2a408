package layer2

import (
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

// descs are the metrics' descriptions. They are cheap, and only a scrape needs them.
type descs struct {
	requests, answers, announcements, probes, takeovers, handovers, conflicts, addresses, conflicting *prometheus.Desc
	// repairs has a Desc for each kind, with the kind as constant label, so that
	// collectors of other packages can add their own kinds to the same metric.
	repairs [repairs]*prometheus.Desc
}

func newDescs() descs {
	metric := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("holdfast_l2_"+name, help, labels, nil)
	}
	repair := func(kind string) *prometheus.Desc {
		return prometheus.NewDesc("holdfast_repairs_total", "Repairs of drift, by kind.", nil, prometheus.Labels{"kind": kind})
	}
	return descs{
		requests:      metric("requests_total", "Frames received, by what became of them.", "family", "result"),
		answers:       metric("answers_total", "Answers to requests.", "family", "result"),
		announcements: metric("announcements_total", "Gratuitous ARP packets and unsolicited neighbor advertisements.", "family", "result"),
		probes:        metric("probes_total", "Questions whether anybody has an address.", "family", "result"),
		takeovers:     metric("takeovers_total", "Addresses that this node began to announce.", "family"),
		handovers:     metric("handovers_total", "Addresses that this node left to another one, which was heard or not.", "result"),
		conflicts:     metric("conflicts_total", "Claims of an address by other machines, and by speakers that answer for it beyond a move.", "family"),
		addresses:     metric("announced_addresses", "Addresses that are answered on at least one link.", "family"),
		conflicting:   metric("conflicting_addresses", "Addresses that another machine was seen to claim lately, or a speaker beyond a move.", "family"),
		repairs: [repairs]*prometheus.Desc{
			repairSocket: repair("l2_socket"), repairGroup: repair("l2_group"),
			repairLink: repair("l2_link"), repairMAC: repair("l2_mac"), repairConflict: repair("l2_conflict"),
		},
	}
}

// Describe implements prometheus.Collector.
func (r *Responder) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(r, ch) }

// Collect implements prometheus.Collector.
func (r *Responder) Collect(ch chan<- prometheus.Metric) {
	d := newDescs()
	counter := func(desc *prometheus.Desc, n *atomic.Uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n.Load()), labels...)
	}
	addresses, conflicting := make(map[lb.Family]int), make(map[lb.Family]int)
	for _, a := range r.State().Addresses {
		if a.Answered {
			addresses[lb.FamilyOf(a.Address)]++
		}
		if len(a.Conflicts) > 0 {
			conflicting[lb.FamilyOf(a.Address)]++
		}
	}
	gauge := func(desc *prometheus.Desc, n int, family string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), family)
	}
	for i, proto := range r.protocols {
		family := proto.name
		for o := range outcomes {
			counter(d.requests, &r.counts.requests[i][o], family, o.String())
		}
		for result, label := range [results]string{sent: "sent", failed: "failed"} {
			counter(d.answers, &r.counts.answers[i][result], family, label)
			counter(d.probes, &r.counts.probes[i][result], family, label)
		}
	}
	for i, proto := range r.protocols[:families] {
		family := proto.name
		for result, label := range [results]string{sent: "sent", failed: "failed"} {
			counter(d.announcements, &r.counts.announcements[i][result], family, label)
		}
		counter(d.takeovers, &r.counts.takeovers[i], family)
		counter(d.conflicts, &r.counts.conflicts[i], family)
		gauge(d.addresses, addresses[lb.Family(family)], family)
		gauge(d.conflicting, conflicting[lb.Family(family)], family)
	}
	counter(d.handovers, &r.counts.handovers[heard], "heard")
	counter(d.handovers, &r.counts.handovers[unheard], "unheard")
	for kind, desc := range d.repairs {
		counter(desc, &r.counts.repairs[kind])
	}
}
