package bgp

import (
	"net/netip"
	"slices"

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

// difference returns what changes from one sorted list of routes to another.
func difference(from, to []lb.Route) (o lb.Order) {
	for len(from) > 0 || len(to) > 0 {
		switch {
		case len(to) == 0 || len(from) > 0 && comparePrefixes(from[0], to[0]) < 0:
			o.Remove = append(o.Remove, from[0].Prefix)
			from = from[1:]
		case len(from) == 0 || comparePrefixes(from[0], to[0]) > 0:
			o.Put = append(o.Put, to[0])
			to = to[1:]
		default:
			if !from[0].SameAttributes(to[0]) {
				o.Put = append(o.Put, to[0])
			}
			from, to = from[1:], to[1:]
		}
	}
	return o
}

func comparePrefixes(a, b lb.Route) int { return netip.Prefix.Compare(a.Prefix, b.Prefix) }
