package plan

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// guarded returns all ranges that Holdfast may serve: the pools, and the addresses of Services that leave, since
// kube-proxy serves these until they are gone from the status. It leaves out the addresses on this node's links, and
// those that another load balancer serves. What a Node lists as its own does not count: who writes one Node would open
// all others.
func (c *common) guarded(s *lb.State, groups *lb.Groups) []lb.Range {
	covered := c.pools.ranges.Ranges()
	all := lb.Subtract(covered, c.unguarded(groups))
	for _, l := range s.Leaving {
		for _, a := range l.Addresses {
			all = append(all, only(a))
		}
	}

	others := slices.Clone(s.Here.Addresses)
	for a := range s.Reserved {
		others = append(others, a)
	}

	return without(lb.Joined(all), others)
}

// only returns the range of a single address.
func only(a netip.Addr) lb.Range {
	return lb.Range{From: a, To: a}
}

// unguarded returns what the pools leave alone, without the addresses that Services have.
func (c *common) unguarded(groups *lb.Groups) []lb.Range {
	var all []lb.Range
	for i := range c.state.Pools {
		pool := &c.state.Pools[i]
		all = append(all, pool.Unguarded...)
	}

	if len(all) == 0 {
		return nil
	}

	var held []netip.Addr
	for _, g := range groups.All {
		for _, s := range g.Services {
			held = append(held, s.Addresses...)
		}
	}

	return without(lb.Joined(all), held)
}

// open returns the ranges in which undeclared ports are left alone, without the addresses of Services with ports beyond
// their namespace's bound, which are closed.
func (c *common) open(exceptions []*lb.Service) []lb.Range {
	var bounded []netip.Addr
	for _, s := range exceptions {
		if len(s.Unserved) > 0 {
			bounded = append(bounded, s.Addresses...)
		}
	}

	isOpen := func(pool *lb.Pool) bool {
		return pool.Open
	}
	return without(c.rangesOf(isOpen, exceptions), bounded)
}

// reset returns the ranges in which closed ports answer with a reset.
func (c *common) reset(exceptions []*lb.Service) []lb.Range {
	isReset := func(pool *lb.Pool) bool {
		return pool.Reset
	}
	return c.rangesOf(isReset, exceptions)
}

// rangesOf returns the ranges of the pools with a wish, and addresses cut from them.
func (c *common) rangesOf(
	hasWish func(*lb.Pool) bool,
	exceptions []*lb.Service,
) []lb.Range {
	var all []lb.Range
	for _, r := range c.pools.ranges {
		if hasWish(r.Owner) {
			all = append(all, r.Range)
		}
	}

	for _, s := range exceptions {
		for _, origin := range s.Record {
			a := origin.Address
			pool := c.pools.pool(s, a)
			if pool != nil && hasWish(pool) {
				all = append(all, only(a))
			}
		}
	}

	return lb.Joined(all)
}

// without returns disjoint, ordered ranges without some addresses.
func without(ranges []lb.Range, addresses []netip.Addr) []lb.Range {
	cut := newAddresses(addresses)
	var out []lb.Range
	for _, r := range ranges {
		i, _ := slices.BinarySearchFunc(
			cut,
			r.From,
			netip.Addr.Compare,
		)
		for _, a := range cut[i:] {
			if !r.Contains(a) {
				break
			}
			if r.From.Less(a) {
				before := lb.Range{
					From: r.From,
					To:   a.Prev(),
				}
				out = append(out, before)
			}
			r.From = a.Next()
			if !r.From.IsValid() {
				break // a was the last address of all
			}
		}

		isEmpty := !r.From.IsValid() || r.To.Less(r.From)
		if !isEmpty {
			out = append(out, r)
		}
	}

	return out
}

// poolIndex finds the pool of an address.
type poolIndex struct {
	ranges lb.Index[*lb.Pool]
	byName map[string]*lb.Pool
}

func newPoolIndex(pools []lb.Pool) poolIndex {
	byName := map[string]*lb.Pool{}
	for i := range pools {
		byName[pools[i].Name] = &pools[i]
	}

	rangesOf := func(p *lb.Pool) []lb.Range {
		return p.Ranges
	}
	all := slices.Collect(maps.Values(byName))
	return poolIndex{
		ranges: lb.IndexOf(all, rangesOf),
		byName: byName,
	}
}

// pool returns the pool of an address: the pool that contains it, else the pool that it was assigned from; nil for
// none.
func (x poolIndex) pool(s *lb.Service, a netip.Addr) *lb.Pool {
	pool := x.ranges.Find(a)
	if pool != nil {
		return pool
	}
	return x.byName[s.Record.Of(a).Pool]
}

// exceptional reports whether a Service has an address beyond the pools, or ports that are not served.
func (x poolIndex) exceptional(s *lb.Service) bool {
	isBeyond := func(o lb.Origin) bool {
		return x.ranges.Find(o.Address) == nil
	}
	return len(s.Unserved) > 0 || slices.ContainsFunc(s.Record, isBeyond)
}
