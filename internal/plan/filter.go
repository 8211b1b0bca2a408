package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// filter plans which packets this node lets through at addresses that are not as in the last plan. Every node filters
// all frontends: packets for an address may arrive at a node that does not announce it.
func (p *planner) filter(last *planner, before *Plan) {
	part, f, b := p.state, &p.plan.Filter, &last.plan.Filter
	part.Services = nil
	for i, again := range p.changes.again {
		if again {
			part.Services = append(part.Services, p.state.Services[i])
		}
	}
	all := frontends(part, p.pools, p.node)
	f.Pings = with(&p.changes, b.Pings, p.pings(part.Services, all))
	f.Frontends = with(&p.changes, b.Frontends, keptAll(before.Filter.Frontends, byAddress(all), equalFrontends))
	f.Guarded = kept(b.Guarded, p.guarded())
	if p.changes.terms || p.changes.whole {
		f.Reset, f.Open = kept(b.Reset, p.rangesOf(func(o *lb.Pool) bool { return o.Reset })), kept(b.Open, p.open())
	}
}

// pings returns the addresses of the frontends of some Services that can be served from this node, which are ordered by
// address. The node answers pings to them whether it announces them or not, as kube-proxy serves them: so no ping is
// lost while an address moves, or while a speaker starts and does not know the others yet.
func (p *planner) pings(services []*lb.Service, frontends []lb.Frontend) map[netip.Addr]struct{} {
	type part struct {
		service lb.Key
		family  lb.Family
	}
	served := map[part]bool{}
	for _, s := range services {
		for _, family := range []lb.Family{lb.IPv4, lb.IPv6} {
			served[part{s.Key, family}] = s.Serves(p.node, family)
		}
	}
	for i := range p.state.Leaving {
		key := p.state.Leaving[i].Served.Key
		delete(served, part{key, lb.IPv4})
		delete(served, part{key, lb.IPv6})
	}
	out := map[netip.Addr]struct{}{}
	for i := range frontends {
		if f := &frontends[i]; served[part{f.Service, lb.FamilyOf(f.Address)}] {
			out[f.Address] = struct{}{}
		}
	}
	return out
}

func equalFrontends(a, b []lb.Frontend) bool { return slices.EqualFunc(a, b, lb.Frontend.Equal) }

// byAddress returns ordered frontends by their addresses.
func byAddress(frontends []lb.Frontend) map[netip.Addr][]lb.Frontend {
	out := map[netip.Addr][]lb.Frontend{}
	for _, f := range frontends {
		out[f.Address] = append(out[f.Address], f)
	}
	return out
}

// guarded returns all ranges that Holdfast may serve: the pools, and the addresses of Services that leave, since
// kube-proxy serves these until they are gone from the status. It leaves out the addresses on this node's links, and
// those that another load balancer serves. What a Node lists as its own does not count: who writes one Node would open
// all others.
func (p *planner) guarded() []lb.Range {
	all := lb.Subtract(p.pools.ranges.Ranges(), p.unguarded())
	for _, l := range p.state.Leaving {
		for _, a := range l.Addresses {
			all = append(all, lb.Range{From: a, To: a})
		}
	}
	return without(lb.Joined(all), slices.AppendSeq(slices.Clone(p.state.Here.Addresses), maps.Keys(p.state.Reserved)))
}

// unguarded returns what the pools leave alone, without the addresses that Services have.
func (p *planner) unguarded() []lb.Range {
	var all []lb.Range
	for i := range p.state.Pools {
		all = append(all, p.state.Pools[i].Unguarded...)
	}
	if len(all) == 0 {
		return nil
	}
	return without(lb.Joined(all), slices.Collect(maps.Keys(p.servicesOf)))
}

// open returns the ranges in which undeclared ports are left alone, without the addresses of Services with ports beyond
// their namespace's bound, which are closed.
func (p *planner) open() []lb.Range {
	var bounded []netip.Addr
	for _, s := range p.exceptions {
		if len(s.Unserved) > 0 {
			bounded = append(bounded, s.Addresses...)
		}
	}
	return without(p.rangesOf(func(o *lb.Pool) bool { return o.Open }), bounded)
}

// rangesOf returns the ranges of the pools with a wish, and addresses cut from them.
func (p *planner) rangesOf(wished func(*lb.Pool) bool) []lb.Range {
	var all []lb.Range
	for _, r := range p.pools.ranges {
		if wished(r.Owner) {
			all = append(all, r.Range)
		}
	}
	for _, s := range p.exceptions {
		for _, origin := range s.Record {
			if pool := p.pools.pool(s, origin.Address); pool != nil && wished(pool) {
				all = append(all, lb.Range{From: origin.Address, To: origin.Address})
			}
		}
	}
	return lb.Joined(all)
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

// Frontends returns the frontends of all Services that stay, ordered by address, protocol and port, without what
// differs between nodes.
func Frontends(s lb.State) []lb.Frontend {
	s.Leaving = nil
	return frontends(s, newPoolIndex(s.Pools), "")
}

// frontends returns the frontends as one node sees them; node is "" for none.
func frontends(s lb.State, pools poolIndex, node string) []lb.Frontend {
	own := map[netip.Addr]bool{}
	for _, a := range s.Here.Addresses {
		own[a] = true
	}
	out := make([]lb.Frontend, 0, len(s.Services)) // each is large
	for _, sv := range served(&s) {
		for _, a := range sv.Addresses {
			if own[a] {
				continue // a filter on an address of this node's links would cut the node off
			}
			f := frontendOf(sv, a, pools.pool(sv, a))
			switch allowed := sv.InternalAllowed && f.HasRanges(); {
			case sv.Proxied: // the ClusterIP would lead past the proxies
				f.Inside = allowed
			case allowed && !sv.InternalLocal:
				f.ClusterIP = sameFamily(sv.ClusterIPs, a)
			}

			refused := sv.ProxyRefused
			var proxy *lb.ProxyPod
			if sv.Proxied {
				proxy = proxyOf(&s, node, sv, a)
				refused = proxy == nil || proxy.Node != node
			}
			local := sv.Local && !sv.Proxied
			for _, p := range sv.Ports {
				f.Protocol, f.Port = p.Protocol, p.Port
				f.Refuse = node != "" && (refused ||
					proxy != nil && !proxy.Has(sv, p) ||
					local && !sv.ServesPort(node, lb.FamilyOf(a), p))
				out = append(out, f)
			}
		}
	}
	return merged(out)
}

// served returns the Services that kube-proxy serves: those that stay, and those that leave.
func served(s *lb.State) []*lb.Service {
	out := slices.Clone(s.Services)
	for i := range s.Leaving {
		out = append(out, &s.Leaving[i].Served)
	}
	return out
}

func compareFrontends(a, b *lb.Frontend) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// frontendOf returns the terms of a Service and its pool for one address. If all allowed ranges are of the other
// family, no client may connect.
func frontendOf(s *lb.Service, a netip.Addr, pool *lb.Pool) lb.Frontend {
	access := s.Access
	if pool != nil && pool.Restricted {
		if access.Restricted {
			access.Allow = intersection(access.Allow, pool.SourceRanges)
		} else {
			access.Allow, access.Restricted = pool.SourceRanges, true
		}
	}
	access.Allow, access.Deny = ofFamily(access.Allow, a), ofFamily(access.Deny, a)
	return lb.Frontend{Address: a, Service: s.Key, Access: access}
}

// sameFamily returns the address of the family of a, of at most one of each; the zero Addr for none.
func sameFamily(all []netip.Addr, a netip.Addr) netip.Addr {
	for _, one := range all {
		if one.BitLen() == a.BitLen() {
			return one
		}
	}
	return netip.Addr{}
}

// ofFamily returns the prefixes of an address's family, of a list that has IPv4 before IPv6.
func ofFamily(prefixes []netip.Prefix, a netip.Addr) []netip.Prefix {
	six := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Addr().Is6() })
	switch {
	case six < 0 && a.Is6():
		return nil
	case six < 0:
		return prefixes
	case a.Is6():
		return prefixes[six:]
	}
	return prefixes[:six:six]
}

// intersection returns the intersection of two ordered lists of disjoint prefixes. If two prefixes overlap, one lies
// within the other.
func intersection(a, b []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for len(a) > 0 && len(b) > 0 {
		x, y := a[0], b[0]
		switch {
		case !x.Overlaps(y) && x.Addr().Less(y.Addr()):
			a = a[1:]
		case !x.Overlaps(y):
			b = b[1:]
		case x.Bits() >= y.Bits():
			out, a = append(out, x), a[1:]
		default:
			out, b = append(out, y), b[1:]
		}
	}
	return out
}

// merged orders frontends, and joins those that two Services have in common, which happens only if another program
// wrote their statuses. kube-proxy may choose the pods of either, so that the terms of both apply.
func merged(frontends []lb.Frontend) []lb.Frontend {
	// Frontends are large, and many Services that share an address are far from in order.
	order := make([]int, len(frontends))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return compareFrontends(&frontends[i], &frontends[j]) })
	out := make([]lb.Frontend, 0, len(frontends))
	for _, i := range order {
		if n := len(out); n == 0 || compareFrontends(&out[n-1], &frontends[i]) != 0 {
			out = append(out, frontends[i])
		} else {
			out[n-1] = both(out[n-1], frontends[i])
		}
	}
	return out
}

// both returns a frontend with the terms of both.
func both(a, b lb.Frontend) lb.Frontend {
	switch {
	case a.Restricted && b.Restricted:
		a.Allow = intersection(a.Allow, b.Allow)
	case b.Restricted:
		a.Allow, a.Restricted = b.Allow, true
	}
	a.Deny = lb.Outermost(slices.Concat(a.Deny, b.Deny))
	a.ConnectionLimit = lower(a.ConnectionLimit, b.ConnectionLimit)
	a.RateLimit = lower(a.RateLimit, b.RateLimit)
	a.Refuse, a.LogDrops = a.Refuse && b.Refuse, a.LogDrops || b.LogDrops
	a.ClusterIP, a.Inside = netip.Addr{}, a.Inside && b.Inside
	return a
}

// lower returns the lower of two bounds, of which 0 is no bound.
func lower(a, b int) int {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
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
	return poolIndex{
		lb.IndexOf(slices.Collect(maps.Values(byName)), func(p *lb.Pool) []lb.Range { return p.Ranges }),
		byName,
	}
}

// pool returns the pool of an address: the pool that contains it, else the pool that it was assigned from; nil for
// none.
func (x poolIndex) pool(s *lb.Service, a netip.Addr) *lb.Pool {
	if pool := x.ranges.Find(a); pool != nil {
		return pool
	}
	return x.byName[s.Record.Of(a).Pool]
}

// exceptional reports whether a Service has an address beyond the pools, or ports that are not served.
func (x poolIndex) exceptional(s *lb.Service) bool {
	return len(s.Unserved) > 0 ||
		slices.ContainsFunc(s.Record, func(o lb.Origin) bool { return x.ranges.Find(o.Address) == nil })
}
