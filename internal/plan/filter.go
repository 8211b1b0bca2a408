package plan

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// filter plans which packets this node lets through at the addresses of a group. Every node filters all frontends:
// packets for an address may arrive at a node that does not announce it. A filter on an address of this node's links
// would cut the node off.
func (g *group) filter() {
	var all []lb.Frontend
	for s := range served(g.Group) {
		for _, a := range s.Addresses {
			if !g.known(a).isOnLink {
				all = append(all, g.frontends(s, a)...)
			}
		}
	}

	services := g.answering()
	isAnswering := func(f lb.Frontend) bool {
		s := services[f.Service]
		if s == nil {
			return false
		}
		return s.Serves(g.node, lb.FamilyOf(f.Address))
	}
	for list := range byAddress(merged(all)) {
		here := g.effect(list[0].Address)
		here.frontends = &list
		here.answersPings = slices.ContainsFunc(list, isAnswering)
	}
}

// answering returns the Services that stay. This node answers pings to their addresses if it can serve these, whether
// it announces them or not, as kube-proxy serves them: so no ping is lost while an address moves, or while a speaker
// starts and does not know the others yet.
func (g *group) answering() map[lb.Key]*lb.Service {
	out := make(map[lb.Key]*lb.Service, len(g.Services))
	for _, s := range g.Services {
		out[s.Key] = s
	}

	for _, s := range g.Leaving {
		delete(out, s.Key)
	}
	return out
}

// byAddress yields the frontends of each address; they are ordered.
func byAddress(frontends []lb.Frontend) iter.Seq[[]lb.Frontend] {
	return func(yield func([]lb.Frontend) bool) {
		for len(frontends) > 0 {
			a, n := frontends[0].Address, 1
			for n < len(frontends) && frontends[n].Address == a {
				n++
			}
			if !yield(slices.Clip(frontends[:n])) {
				return
			}
			frontends = frontends[n:]
		}
	}
}

// served yields the Services that kube-proxy serves: those that stay, and those that leave.
func served(g *lb.Group) iter.Seq[*lb.Service] {
	return func(yield func(*lb.Service) bool) {
		for _, list := range [][]*lb.Service{g.Services, g.Leaving} {
			for _, s := range list {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// Frontends returns the frontends of all Services that stay, ordered by address, protocol and port, without what
// differs between nodes.
func Frontends(s lb.State) []lb.Frontend {
	isOwn := map[netip.Addr]bool{}
	for _, a := range s.Here.Addresses {
		isOwn[a] = true
	}

	pools := newPoolIndex(s.Pools)
	all := make([]lb.Frontend, 0, len(s.Services)) // each is large

	for _, sv := range s.Services {
		for _, a := range sv.Addresses {
			if isOwn[a] {
				continue
			}
			f := agreedFrontend(sv, a, pools)
			for _, p := range sv.Ports {
				f.Protocol, f.Port = p.Protocol, p.Port
				all = append(all, f)
			}
		}
	}

	return merged(all)
}

// agreedFrontend returns what all nodes know of the frontends of a Service at an address, without a port.
func agreedFrontend(
	s *lb.Service,
	a netip.Addr,
	pools poolIndex,
) lb.Frontend {
	f := frontendOf(s, a, pools.pool(s, a))
	isAllowed := s.InternalAllowed && f.HasRanges()

	switch {
	case s.Proxied: // the ClusterIP would lead past the proxies
		f.Inside = isAllowed
	case isAllowed && !s.InternalLocal:
		f.ClusterIP = sameFamily(s.ClusterIPs, a)
	}

	return f
}

// frontends returns the frontends of a Service at an address as this node sees them.
func (g *group) frontends(s *lb.Service, a netip.Addr) (out []lb.Frontend) {
	f := agreedFrontend(s, a, g.pools)
	isRefused := s.ProxyRefused
	var proxy *lb.ProxyPod
	if s.Proxied {
		proxy = g.proxyOf(s, a)
		isRefused = proxy == nil || proxy.Node != g.node
	}

	isLocal := s.Local && !s.Proxied
	family := lb.FamilyOf(a)

	for _, p := range s.Ports {
		f.Protocol, f.Port = p.Protocol, p.Port
		isUnserved := isLocal && !s.ServesPort(g.node, family, p)
		lacksPort := proxy != nil && !proxy.Has(s, p)
		f.Refuse = isRefused || lacksPort || isUnserved
		out = append(out, f)
	}

	return out
}

func compareFrontends(a, b *lb.Frontend) int {
	return cmp.Or(
		a.Address.Compare(b.Address),
		cmp.Compare(a.Protocol, b.Protocol),
		cmp.Compare(a.Port, b.Port),
	)
}

// frontendOf returns the terms of a Service and its pool for one address. If all allowed ranges are of the other
// family, no client may connect.
func frontendOf(
	s *lb.Service,
	a netip.Addr,
	pool *lb.Pool,
) lb.Frontend {
	access := s.Access
	if pool != nil && pool.Restricted {
		if access.Restricted {
			access.Allow = intersection(access.Allow, pool.SourceRanges)
		} else {
			access.Allow, access.Restricted = pool.SourceRanges, true
		}
	}

	access.Allow = ofFamily(access.Allow, a)
	access.Deny = ofFamily(access.Deny, a)
	return lb.Frontend{
		Address: a,
		Service: s.Key,
		Access:  access,
	}
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
	isIPv6 := func(p netip.Prefix) bool {
		return p.Addr().Is6()
	}
	six := slices.IndexFunc(prefixes, isIPv6)
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
		isApart := !x.Overlaps(y)
		switch {
		case isApart && x.Addr().Less(y.Addr()):
			a = a[1:]
		case isApart:
			b = b[1:]
		case x.Bits() >= y.Bits():
			out = append(out, x)
			a = a[1:]
		default:
			out = append(out, y)
			b = b[1:]
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

	compare := func(i, j int) int {
		return compareFrontends(&frontends[i], &frontends[j])
	}
	slices.SortStableFunc(order, compare)

	out := make([]lb.Frontend, 0, len(frontends))
	for _, i := range order {
		f := &frontends[i]
		n := len(out)
		if n == 0 || compareFrontends(&out[n-1], f) != 0 {
			out = append(out, *f)
			continue
		}
		last := &out[n-1]
		*last = both(*last, *f)
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

	denied := slices.Concat(a.Deny, b.Deny)
	a.Deny = lb.Outermost(denied)
	a.ConnectionLimit = lower(a.ConnectionLimit, b.ConnectionLimit)
	a.RateLimit = lower(a.RateLimit, b.RateLimit)
	a.Refuse = a.Refuse && b.Refuse
	a.LogDrops = a.LogDrops || b.LogDrops
	a.ClusterIP = netip.Addr{}
	a.Inside = a.Inside && b.Inside

	return a
}

// lower returns the lower of two bounds, of which 0 is no bound.
func lower(a, b int) int {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
