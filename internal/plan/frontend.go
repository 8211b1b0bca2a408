package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Frontends returns the frontends of all Services that stay, ordered by address, protocol and port, without what differs
// between nodes.
func Frontends(s lb.State) []lb.Frontend { return frontends(s, newPoolIndex(s.Pools), "") }

// frontends returns the frontends as one node sees them; node is "" for none.
func frontends(s lb.State, pools poolIndex, node string) []lb.Frontend {
	own := map[netip.Addr]bool{}
	for _, a := range s.Here.Addresses {
		own[a] = true
	}
	var out []lb.Frontend
	add := func(sv *lb.Service) {
		for _, a := range sv.Addresses {
			if own[a] {
				continue // a filter on an address of this node's links would cut the node off
			}
			f := frontendOf(sv, a, pools.pool(sv, a))
			f.Refuse = node != "" && sv.Local && !sv.ServingNodes[node]
			if sv.InternalAllowed && f.HasRanges() && !sv.InternalLocal {
				f.ClusterIP = clusterIP(sv, a)
			}
			for _, p := range sv.Ports {
				f.Protocol, f.Port = p.Protocol, p.Port
				out = append(out, f)
			}
		}
	}
	for i := range s.Services {
		add(&s.Services[i])
	}
	for i := range s.Leaving {
		if node != "" {
			add(&s.Leaving[i].Served)
		}
	}
	return merged(out)
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
	return lb.Frontend{
		Address: a, Service: s.Key,
		Restricted: access.Restricted, Allow: ofFamily(access.Allow, a), Deny: ofFamily(access.Deny, a),
		ConnectionLimit: access.ConnectionLimit, RateLimit: access.RateLimit, LogDrops: access.LogDrops,
	}
}

// clusterIP returns the Service's cluster IP of the same family; the zero Addr for none.
func clusterIP(s *lb.Service, a netip.Addr) netip.Addr {
	for _, ip := range s.ClusterIPs {
		if ip.BitLen() == a.BitLen() {
			return ip
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

// merged orders frontends, and joins those that two Services have in common, which happens only if another program wrote
// their statuses. kube-proxy may choose the pods of either, so that the terms of both apply.
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
	a.Deny = union(a.Deny, b.Deny)
	a.ConnectionLimit = lower(a.ConnectionLimit, b.ConnectionLimit)
	a.RateLimit = lower(a.RateLimit, b.RateLimit)
	a.Refuse, a.LogDrops = a.Refuse && b.Refuse, a.LogDrops || b.LogDrops
	a.ClusterIP = netip.Addr{}
	return a
}

// lower returns the lower of two bounds, of which 0 is no bound.
func lower(a, b int) int {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// union returns the union of two ordered lists of disjoint prefixes, in the same form.
func union(a, b []netip.Prefix) []netip.Prefix {
	all := slices.SortedFunc(slices.Values(slices.Concat(a, b)), comparePrefix)
	var out []netip.Prefix
	for _, p := range all {
		if n := len(out); n == 0 || !out[n-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}
