package daemon

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// maxNamed limits the series that name Services: any user may make many.
const maxNamed = 2000

// Named sends a gauge of 1 for each row of labels, which begin with the namespace and the name of a Service. Of the rows beyond
// maxNamed, in the order of names, it sends how many there are, without namespace and name.
func Named(ch chan<- prometheus.Metric, d *prometheus.Desc, rows map[[4]string]bool) {
	rest := map[[4]string]float64{}
	for i, row := range slices.SortedFunc(maps.Keys(rows), func(a, b [4]string) int { return slices.Compare(a[:], b[:]) }) {
		if i < maxNamed {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, 1, row[:]...)
			continue
		}
		rest[[4]string{2: row[2], 3: row[3]}]++
	}
	for row, n := range rest {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, row[:]...)
	}
}
