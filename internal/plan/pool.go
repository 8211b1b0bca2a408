package plan

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// poolIndex finds the pool of an address.
type poolIndex struct {
	// ranges of all pools, disjoint, ordered by first address.
	ranges []poolRange
	byName map[string]*lb.Pool
}

type poolRange struct {
	lb.Range
	pool *lb.Pool
}

func newPoolIndex(pools []lb.Pool) poolIndex {
	x := poolIndex{byName: map[string]*lb.Pool{}}
	for i := range pools {
		x.byName[pools[i].Name] = &pools[i]
		for _, r := range pools[i].Ranges {
			x.ranges = append(x.ranges, poolRange{r, &pools[i]})
		}
	}
	slices.SortFunc(x.ranges, func(a, b poolRange) int { return a.From.Compare(b.From) })
	return x
}

// nameOf returns the name of the pool of an address: the one that contains it, else the one that it was assigned
// from; "" for none.
func (x poolIndex) nameOf(s *lb.Service, a netip.Addr) string {
	i, found := slices.BinarySearchFunc(x.ranges, a, func(r poolRange, a netip.Addr) int { return r.From.Compare(a) })
	if !found {
		i--
	}
	if i >= 0 && x.ranges[i].Contains(a) {
		return x.ranges[i].pool.Name
	}
	return s.Record.Of(a).Pool
}

// pool returns the pool of an address; nil for none.
func (x poolIndex) pool(s *lb.Service, a netip.Addr) *lb.Pool { return x.byName[x.nameOf(s, a)] }
