package plan

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// filter returns which packets this node lets through. Every node filters all frontends: packets for an address may
// arrive at a node that does not announce it.
func (p *planner) filter() lb.Filter {
	all := frontends(p.state, p.pools, p.node)
	return lb.Filter{Guarded: p.guarded(), Frontends: all, Reset: p.reset(), Pings: p.pings(all)}
}

// pings returns the addresses of the frontends that can be served from this node, which are ordered by address. The node
// answers pings to them whether it announces them or not, as kube-proxy serves them: so no ping is lost while an address
// moves, or while a speaker starts and does not know the others yet.
func (p *planner) pings(frontends []lb.Frontend) []netip.Addr {
	silent := map[lb.Key]bool{}
	for i := range p.state.Services {
		if s := &p.state.Services[i]; !s.Serving || s.Local && !s.ServingNodes[p.node] {
			silent[s.Key] = true
		}
	}
	for i := range p.state.Leaving {
		silent[p.state.Leaving[i].Served.Key] = true
	}
	var out []netip.Addr
	for _, f := range frontends {
		if !silent[f.Service] && (len(out) == 0 || out[len(out)-1] != f.Address) {
			out = append(out, f.Address)
		}
	}
	return out
}

// guarded returns all ranges that Holdfast may serve: the pools, and the addresses of Services that leave, since
// kube-proxy serves these until they are gone from the status. It leaves out the addresses on this node's links, and those
// that another load balancer serves. What a Node lists as its own does not count: who writes one Node would open all others.
func (p *planner) guarded() []lb.Range {
	var all []lb.Range
	for _, r := range p.pools.ranges {
		all = append(all, r.Range)
	}
	for _, l := range p.state.Leaving {
		for _, a := range l.Addresses {
			all = append(all, lb.Range{From: a, To: a})
		}
	}
	return without(disjoint(all), slices.AppendSeq(slices.Clone(p.state.Here.Addresses), maps.Keys(p.state.Reserved)))
}

// reset returns the ranges in which a closed port answers: the pools that ask for it, and addresses cut from them.
func (p *planner) reset() []lb.Range {
	var all []lb.Range
	for _, r := range p.pools.ranges {
		if r.pool.Reset {
			all = append(all, r.Range)
		}
	}
	for i := range p.state.Services {
		s := &p.state.Services[i]
		for _, origin := range s.Record {
			if pool := p.pools.pool(s, origin.Address); pool != nil && pool.Reset {
				all = append(all, lb.Range{From: origin.Address, To: origin.Address})
			}
		}
	}
	return disjoint(all)
}

// disjoint orders ranges, and joins those that overlap or touch.
func disjoint(ranges []lb.Range) []lb.Range {
	slices.SortFunc(ranges, func(a, b lb.Range) int { return a.From.Compare(b.From) })
	var out []lb.Range
	for _, r := range ranges {
		if n := len(out); n > 0 && (out[n-1].Overlaps(r) || out[n-1].To.Next() == r.From) {
			if out[n-1].To.Less(r.To) {
				out[n-1].To = r.To
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

// without returns disjoint, ordered ranges without some addresses.
func without(ranges []lb.Range, addresses []netip.Addr) []lb.Range {
	slices.SortFunc(addresses, netip.Addr.Compare)
	var out []lb.Range
	for _, r := range ranges {
		i, _ := slices.BinarySearchFunc(addresses, r.From, netip.Addr.Compare)
		for ; i < len(addresses) && r.From.IsValid() && r.Contains(addresses[i]); i++ {
			if a := addresses[i]; r.From.Less(a) {
				out = append(out, lb.Range{From: r.From, To: a.Prev()})
			}
			r.From = addresses[i].Next()
		}
		if r.From.IsValid() && !r.To.Less(r.From) {
			out = append(out, r)
		}
	}
	return out
}
