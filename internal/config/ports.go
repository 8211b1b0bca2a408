package config

import (
	"cmp"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// DefaultMorePorts is how many ports beyond the first of each the Services of a namespace have together, unless the operator
// says otherwise. Each costs every node as much as a Service with one port.
const DefaultMorePorts = 5_000

// boundPorts leaves the Services of each namespace so many ports together beyond the first of each, those of the older
// Services first, so that a new Service takes none from another. Services are ordered by key. One that has more ports than
// are left gets no address, and keeps the addresses that it has, with the first ports of its spec.
func boundPorts(r *report, services []lb.Service, most int) {
	for len(services) > 0 {
		n, more := 0, 0
		for ; n < len(services) && services[n].Key.Namespace == services[0].Key.Namespace; n++ {
			more += morePorts(&services[n])
		}
		if more > most {
			boundTogether(r, services[:n], more, most)
		}
		services = services[n:]
	}
}

func morePorts(s *lb.Service) int { return max(0, len(s.Ports)-1) }

// boundTogether is boundPorts for the Services of one namespace, which have too many.
func boundTogether(r *report, services []lb.Service, more, most int) {
	byAge := make([]*lb.Service, len(services))
	for i := range services {
		byAge[i] = &services[i]
	}
	slices.SortFunc(byAge, func(a, b *lb.Service) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID)) })
	left := most
	for _, s := range byAge {
		excess := max(0, morePorts(s)-left)
		left -= morePorts(s) - excess
		if excess == 0 {
			continue
		}
		served := len(s.Ports) - excess
		r.fault(lb.Object{Kind: KindService, Namespace: s.Key.Namespace, Name: s.Key.Name}, lb.TooManyPorts,
			"%d of its %d ports are too many: beyond the first port of each, the Services of the namespace have %d ports together, and only %d are served, older Services' first",
			excess, len(s.Ports), more, most)
		problem := r.problems[len(r.problems)-1]
		s.Ports, s.Unserved, s.Problem = s.Ports[:served:served], s.Ports[served:], cmp.Or(s.Problem, &problem)
	}
}
