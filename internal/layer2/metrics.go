package layer2

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// result of sending.
const (
	sent = iota
	failed

	results
)

// Kinds of repairs.
const (
	repairSocket = iota
	repairGroup

	repairs
)

// counts are the events that no state shows.
type counts struct {
	requests      [families][outcomes]atomic.Uint64
	responses     [families][results]atomic.Uint64
	announcements [families][results]atomic.Uint64
	repairs       [repairs]atomic.Uint64
}

// descs are the metrics' descriptions. They cost little, and only a scrape asks for them.
type descs struct {
	requests, responses, announcements, addresses *prometheus.Desc
	// repairs has a Desc for each kind, the kind being a constant label: so
	// collectors of other packages can add kinds of their own to the same metric.
	repairs [repairs]*prometheus.Desc
}

func newDescs() descs {
	metric := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("holdfast_layer2_"+name, help, labels, nil)
	}
	repair := func(kind string) *prometheus.Desc {
		return prometheus.NewDesc("holdfast_repairs_total", "Repairs of drift, by kind.", nil, prometheus.Labels{"kind": kind})
	}
	return descs{
		requests:      metric("requests_total", "Frames received, by what became of them.", "family", "result"),
		responses:     metric("responses_total", "Answers to requests.", "family", "result"),
		announcements: metric("announcements_total", "Gratuitous ARP packets and unsolicited neighbor advertisements.", "family", "result"),
		addresses:     metric("announced_addresses", "Addresses that are answered on at least one link.", "family"),
		repairs:       [repairs]*prometheus.Desc{repairSocket: repair("layer2_socket"), repairGroup: repair("layer2_group")},
	}
}

// Describe implements prometheus.Collector.
func (r *Responder) Describe(ch chan<- *prometheus.Desc) {
	d := newDescs()
	for _, desc := range append(d.repairs[:], d.requests, d.responses, d.announcements, d.addresses) {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (r *Responder) Collect(ch chan<- prometheus.Metric) {
	d := newDescs()
	counter := func(desc *prometheus.Desc, n *atomic.Uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n.Load()), labels...)
	}
	addresses := make(map[lb.Family]int)
	for _, a := range r.State().Addresses {
		if len(a.Links) > 0 {
			addresses[lb.FamilyOf(a.Address)]++
		}
	}
	for i, proto := range r.protocols {
		family := string(proto.family)
		for o := range outcomes {
			counter(d.requests, &r.counts.requests[i][o], family, o.String())
		}
		for result, label := range [results]string{sent: "sent", failed: "failed"} {
			counter(d.responses, &r.counts.responses[i][result], family, label)
			counter(d.announcements, &r.counts.announcements[i][result], family, label)
		}
		ch <- prometheus.MustNewConstMetric(d.addresses, prometheus.GaugeValue, float64(addresses[proto.family]), family)
	}
	for kind, desc := range d.repairs {
		counter(desc, &r.counts.repairs[kind])
	}
}
