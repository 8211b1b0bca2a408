package nodelifecycle

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// leaseInterval is between reads of one node's Lease. A kubelet renews it every 10 s.
	leaseInterval = time.Second
	// checkInterval is between runs while nodes are suspected.
	checkInterval = 200 * time.Millisecond
	// leasesAtOnce is how many Leases are read in a run, and within checkInterval: when a thousand nodes fall silent,
	// the API server has enough to do.
	leasesAtOnce = 10
)

// pace is when the Lease of each node was read last.
type pace map[string]time.Time

// next returns which of the nodes to read the Leases of now, those first that waited longest, and takes them as
// read. It forgets other nodes in time.
func (p pace) next(now time.Time, nodes []string) []string {
	maps.DeleteFunc(p, func(node string, at time.Time) bool {
		return now.Sub(at) >= leaseInterval && !slices.Contains(nodes, node)
	})
	room := leasesAtOnce
	for _, at := range p {
		if now.Sub(at) < checkInterval {
			room--
		}
	}
	due := slices.DeleteFunc(slices.Clone(nodes), func(node string) bool { return now.Sub(p[node]) < leaseInterval })
	slices.SortStableFunc(due, func(a, b string) int { return cmp.Or(p[a].Compare(p[b]), cmp.Compare(a, b)) })
	due = due[:min(len(due), max(room, 0))]
	for _, node := range due {
		p[node] = now
	}
	return due
}
