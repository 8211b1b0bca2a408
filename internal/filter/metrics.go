package filter

import (
	"cmp"
	"encoding/binary"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// maxServices limits the Services with series of their own. All others share the series without a name.
const maxServices = 1000

// series identifies a counter of packets.
type series struct {
	service lb.Key
	// reason is the reason for a drop; 0 counts all packets to the frontends of the Service.
	reason reason
}

// counter identifies an element that counts packets: one of frontendsSet, or with drops one of dropsSet.
type counter struct {
	key   string
	drops bool
}

// packetTotals sums the counters of elements, which start again with every new table.
type packetTotals struct {
	mu sync.Mutex
	// last are the last values of all counters but those that were 0.
	last map[counter]uint64
	// totals never decrease.
	totals map[series]uint64
	// accepted are the last results by Service. They are differences, and must not decrease either.
	accepted map[lb.Key]uint64
	// named are the Services with series of their own.
	named map[lb.Key]bool
}

// read updates the totals from the kernel's counters. It reads drops first: otherwise a drop between the two could
// count as accepted.
func (p *packetTotals) read(img *image) error {
	p.name(img.all())
	last := make(map[counter]uint64, len(p.last))
	for _, f := range families() {
		for _, set := range []string{dropsSet, frontendsSet} {
			err := img.table.Counters(
				f.named(set),
				func(key string, packets uint64) { last[counter{key, set == dropsSet}] = packets },
			)
			if err != nil {
				return err
			}
		}
	}

	for c, n := range last {
		before := p.last[c]
		if n >= before {
			n -= before
		}

		if n > 0 {
			p.totals[p.series(img, c)] += n
		}
	}

	p.last = last
	return nil
}

// series returns the series of a counter. It has no Service if the counter's Service has no series of its own.
func (p *packetTotals) series(img *image, c counter) (s series) {
	key := c.key
	if c.drops { // the reason follows the key of the frontend
		offReason := len(key) - 4
		n := binary.NativeEndian.Uint32([]byte(key[offReason:]))
		s.reason = reason(min(n, uint32(len(reasonNames)-1)))
		key = key[:offReason]
	}

	address, _ := netip.AddrFromSlice([]byte(key[:len(key)-nft.PortSize]))
	service := img.serviceAt(address, key)
	if p.named[service] {
		s.service = service
	}

	return s
}

// name chooses the Services with series of their own. A Service keeps its series until it has no frontend.
func (p *packetTotals) name(frontends iter.Seq[*frontend]) {
	if p.totals == nil {
		p.totals = make(map[series]uint64)
		p.accepted = make(map[lb.Key]uint64)
	}

	named := make(map[lb.Key]bool)
	for d := range frontends {
		if p.named[d.Service] {
			named[d.Service] = true
		}
	}

	for d := range frontends {
		if len(named) == maxServices {
			break
		}

		named[d.Service] = true
	}

	p.named = named
	lostName := func(k lb.Key) bool { return k != lb.Key{} && !named[k] }
	maps.DeleteFunc(p.totals, func(s series, _ uint64) bool { return lostName(s.service) })
	maps.DeleteFunc(p.accepted, func(k lb.Key, _ uint64) bool { return lostName(k) })
}

// snapshot returns copies of the dropped and the accepted packets. A packet is accepted if its frontend counted it and
// did not drop it.
func (p *packetTotals) snapshot() (dropped map[series]uint64, accepted map[lb.Key]uint64) {
	dropped = make(map[series]uint64)
	all := make(map[lb.Key]uint64)
	refused := make(map[lb.Key]uint64)
	for s, n := range p.totals {
		switch s.reason {
		case 0:
			all[s.service] += n
			continue
		case unserved:
			// The frontend accepted the packet, and a later chain dropped it.
		default:
			refused[s.service] += n
		}

		dropped[s] = n
	}

	for k, n := range all {
		n -= min(n, refused[k])
		if n > p.accepted[k] {
			p.accepted[k] = n
		}
	}

	return dropped, maps.Clone(p.accepted)
}

var (
	droppedDesc = prometheus.NewDesc(
		"holdfast_filter_dropped_packets_total",
		"Packets to served addresses that the filter refused, by Service and reason; "+
			"without a Service: no frontend, or beyond the limit of Services with series.",
		[]string{"namespace", "service", "reason"},
		nil,
	)
	acceptedDesc = prometheus.NewDesc(
		"holdfast_filter_accepted_packets_total",
		"Packets that the filter admitted, by Service.",
		[]string{"namespace", "service"},
		nil,
	)
	repairsDesc = prometheus.NewDesc(
		"holdfast_repairs_total",
		"Repairs of drift, by kind.",
		nil,
		prometheus.Labels{"kind": "filter"},
	)
)

// Describe implements prometheus.Collector.
func (t *Table) Describe(ch chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(t, ch)
}

// Collect implements prometheus.Collector. It reads the kernel's counters.
func (t *Table) Collect(ch chan<- prometheus.Metric) {
	counter := func(desc *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
	}

	counter(repairsDesc, t.owned.Repairs())
	dropped, accepted, err := t.readCounters()
	if err != nil {
		t.log.Debug("cannot read packet counters", "error", err)
	}

	order := func(a, b series) int {
		return cmp.Or(a.service.Compare(b.service), cmp.Compare(a.reason, b.reason))
	}

	for _, s := range slices.SortedFunc(maps.Keys(dropped), order) {
		counter(droppedDesc, dropped[s], s.service.Namespace, s.service.Name, s.reason.String())
	}

	for _, k := range slices.SortedFunc(maps.Keys(accepted), lb.Key.Compare) {
		counter(acceptedDesc, accepted[k], k.Namespace, k.Name)
	}
}

// readCounters reads the counters and returns the totals. On an error it returns the last known totals too.
func (t *Table) readCounters() (dropped map[series]uint64, accepted map[lb.Key]uint64, err error) {
	img := t.owned.Actual()
	t.totals.mu.Lock()
	defer t.totals.mu.Unlock()
	if img != nil {
		err = t.totals.read(img)
	}

	dropped, accepted = t.totals.snapshot()
	return dropped, accepted, err
}
