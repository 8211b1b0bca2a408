package plan

import (
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Hindrances returns the nodes that may not announce some address of a Service of this State, by reason: by layer 2,
// and by BGP.
func Hindrances(state lb.State, s *lb.Service) (l2, bgp map[lb.Reason][]string) {
	p := newPlanner("", state)
	of := func(all scopes) map[lb.Reason][]string {
		out := map[lb.Reason][]string{}
		for _, a := range s.Addresses {
			for reason, nodes := range p.hindered(s, lb.FamilyOf(a), all, all.selecting(s, p.pools.pool(s, a))) {
				out[reason] = slices.Concat(out[reason], nodes)
				slices.Sort(out[reason])
				out[reason] = slices.Compact(out[reason])
			}
		}
		return out
	}
	return of(p.l2), of(p.ads)
}
