package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Frontends returns what the Services let in to their addresses, ordered by address,
// protocol and port: what is the same on every node.
func Frontends(s lb.State) []lb.Frontend { return frontends(s, newPoolIndex(s.Pools), "") }

// frontends adds what one node makes of them, unless node is "".
func frontends(s lb.State, pools poolIndex, node string) []lb.Frontend {
	taken := map[netip.Addr]bool{}
	for _, n := range s.Nodes {
		for _, a := range n.Addresses {
			taken[a] = true
		}
	}
	var out []lb.Frontend
	for i := range s.Services {
		sv := &s.Services[i]
		for _, a := range sv.Addresses {
			// Who closes the ports of a node's own address cuts the node off.
			if taken[a] {
				continue
			}
			d := frontendOf(sv, a, pools.pool(sv, a))
			d.Refuse = node != "" && sv.Local && !sv.ServingNodes[node]
			// Neither ranges nor externalTrafficPolicy are about traffic from within.
			if (d.HasRanges() || d.Refuse) && !sv.InternalLocal {
				d.ClusterIP = clusterIP(sv, a)
			}
			for _, p := range sv.Ports {
				d.Protocol, d.Port = p.Protocol, p.Port
				out = append(out, d)
			}
		}
	}
	slices.SortStableFunc(out, compareFrontends)
	return merged(out)
}

func compareFrontends(a, b lb.Frontend) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// frontendOf is what a Service and its pool let in to one address. Ranges of the
// other family only let nobody in.
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

// clusterIP returns the Service's own address of the same family, the zero Addr if there is none.
func clusterIP(s *lb.Service, a netip.Addr) netip.Addr {
	for _, ip := range s.ClusterIPs {
		if ip.BitLen() == a.BitLen() {
			return ip
		}
	}
	return netip.Addr{}
}

// ofFamily returns the prefixes of an address's family; IPv4 is ordered before IPv6.
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

// intersection of two ordered lists of disjoint prefixes: of two that overlap one
// lies within the other.
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

// merged makes one of frontends that two Services claim, which happens only where
// somebody else wrote their statuses. Nobody knows whose pods kube-proxy takes, so
// that the terms of both hold.
func merged(frontends []lb.Frontend) []lb.Frontend {
	var out []lb.Frontend
	for _, d := range frontends {
		if n := len(out); n == 0 || compareFrontends(out[n-1], d) != 0 {
			out = append(out, d)
		} else {
			out[n-1] = both(out[n-1], d)
		}
	}
	return out
}

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

// lower returns the stricter of two bounds, of which 0 is none.
func lower(a, b int) int {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// union of two ordered lists of disjoint prefixes is one, too.
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
