package bgp

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// routesOf returns the routes of each peer, by name, sorted by prefix.
func routesOf(routes []lb.Route) map[string][]lb.Route {
	out := map[string][]lb.Route{}
	for _, r := range routes {
		peers := r.Peers
		r.Prefix, r.Peers = r.Prefix.Masked(), nil
		for _, name := range peers {
			out[name] = append(out[name], r)
		}
	}
	for name, list := range out {
		slices.SortStableFunc(list, comparePrefixes)
		out[name] = slices.CompactFunc(list, func(a, b lb.Route) bool { return a.Prefix == b.Prefix })
	}
	return out
}

// carriedBy returns the routes that a session can carry.
func carriedBy(s wire.Settings, routes []lb.Route) []lb.Route {
	return slices.DeleteFunc(routes, func(r lb.Route) bool { return !s.Carries(lb.FamilyOf(r.Prefix.Addr())) })
}

// difference returns what changes from one sorted list of routes to another.
func difference(from, to []lb.Route) (c wire.Change) {
	for len(from) > 0 || len(to) > 0 {
		switch {
		case len(to) == 0 || len(from) > 0 && comparePrefixes(from[0], to[0]) < 0:
			c.Remove = append(c.Remove, from[0].Prefix)
			from = from[1:]
		case len(from) == 0 || comparePrefixes(from[0], to[0]) > 0:
			c.Put = append(c.Put, to[0])
			to = to[1:]
		default:
			if !equal(from[0], to[0]) {
				c.Put = append(c.Put, to[0])
			}
			from, to = from[1:], to[1:]
		}
	}
	return c
}

func comparePrefixes(a, b lb.Route) int { return netip.Prefix.Compare(a.Prefix, b.Prefix) }

// equal compares routes without their peers.
func equal(a, b lb.Route) bool {
	return a.Prefix == b.Prefix && a.LocalPref == b.LocalPref && a.Prepend == b.Prepend && a.MED == b.MED &&
		a.Leaving == b.Leaving && slices.Equal(a.Communities, b.Communities)
}
