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

// maxServices limits the Services with series of their own; all others share one series without a name.
const maxServices = 1000

// series identifies a counter of packets.
type series struct {
	service lb.Key
	// why is the reason for the drop; 0 counts all packets to the frontends of the Service.
	why reason
}

// counter is that of an element: a frontend's, or with drops of one reason.
type counter struct {
	key   string
	drops bool
}

// packetTotals sums the counters of elements, which start again with every new table.
type packetTotals struct {
	mu sync.Mutex
	// last are the last values of the counters that were not 0.
	last map[counter]uint64
	// totals never fall.
	totals map[series]uint64
	// accepted are the last results by Service. They must not fall either, though they are differences.
	accepted map[lb.Key]uint64
	named    map[lb.Key]bool
}

// read brings the totals up to date. Drops are read first, so that none is among the accepted.
func (y *packetTotals) read(img *image) error {
	y.name(img.all())
	last := make(map[counter]uint64, len(y.last))
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
		if before := y.last[c]; n >= before {
			n -= before
		}

		if n > 0 {
			y.totals[y.series(img, c)] += n
		}
	}

	y.last = last
	return nil
}

// series returns the series of a counter, of no Service for those without one of their own.
func (y *packetTotals) series(img *image, c counter) (s series) {
	key := c.key
	if c.drops { // the reason is behind the key of the frontend
		at := len(key) - 4
		key, s.why = key[:at], reason(min(binary.NativeEndian.Uint32([]byte(key[at:])), uint32(len(reasonNames)-1)))
	}

	a, _ := netip.AddrFromSlice([]byte(key[:len(key)-nft.PortSize]))
	if k := img.serviceAt(a, key); y.named[k] {
		s.service = k
	}

	return s
}

// name chooses the Services with series of their own: who has one keeps it. It frees the series of Services that have
// no frontend any more.
func (y *packetTotals) name(frontends iter.Seq[*frontend]) {
	if y.totals == nil {
		y.totals, y.accepted = make(map[series]uint64), make(map[lb.Key]uint64)
	}

	named := make(map[lb.Key]bool)
	for d := range frontends {
		if k := d.Service; y.named[k] {
			named[k] = true
		}
	}

	for d := range frontends {
		if len(named) == maxServices {
			break
		}

		named[d.Service] = true
	}

	y.named = named
	gone := func(k lb.Key) bool { return k != lb.Key{} && !named[k] }
	maps.DeleteFunc(y.totals, func(s series, _ uint64) bool { return gone(s.service) })
	maps.DeleteFunc(y.accepted, func(k lb.Key, _ uint64) bool { return gone(k) })
}

// snapshot returns copies of the dropped and the accepted packets.
func (y *packetTotals) snapshot() (dropped map[series]uint64, accepted map[lb.Key]uint64) {
	dropped, came := make(map[series]uint64), make(map[lb.Key]uint64)
	refused := make(map[lb.Key]uint64)
	for s, n := range y.totals {
		switch s.why {
		case 0:
			came[s.service] += n
			continue
		// Let in by the frontend, and dropped behind it.
		case unserved:
		default:
			refused[s.service] += n
		}

		dropped[s] = n
	}

	for k, n := range came {
		if n -= min(n, refused[k]); n > y.accepted[k] {
			y.accepted[k] = n
		}
	}

	return dropped, maps.Clone(y.accepted)
}

var (
	droppedDesc = prometheus.NewDesc(
		"holdfast_filter_dropped_packets_total",
		"Packets to served addresses that the filter refused, by Service and reason; without a Service: no frontend, or beyond the limit of Services with series.",
		[]string{"namespace", "service", "reason"},
		nil,
	)
	acceptedDesc = prometheus.NewDesc("holdfast_filter_accepted_packets_total",
		"Packets that the filter admitted, by Service.", []string{"namespace", "service"}, nil)
	repairsDesc = prometheus.NewDesc(
		"holdfast_repairs_total",
		"Repairs of drift, by kind.",
		nil,
		prometheus.Labels{"kind": "filter"},
	)
)

// Describe implements prometheus.Collector.
func (t *Table) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(t, ch) }

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

	order := func(a, b series) int { return cmp.Or(a.service.Compare(b.service), cmp.Compare(a.why, b.why)) }
	for _, s := range slices.SortedFunc(maps.Keys(dropped), order) {
		counter(droppedDesc, dropped[s], s.service.Namespace, s.service.Name, s.why.String())
	}

	for _, k := range slices.SortedFunc(maps.Keys(accepted), lb.Key.Compare) {
		counter(acceptedDesc, accepted[k], k.Namespace, k.Name)
	}
}

// readCounters reads the counters and returns the totals; on an error, the last known ones.
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
