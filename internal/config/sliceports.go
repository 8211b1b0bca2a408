package config

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// closeSlicePorts closes the ports that pods send from. A slice is not taken from the pods that use it, because that
// would break their connections. A Service that loses ports is replaced by a copy.
func closeSlicePorts(r *problemList, services []*lb.Service, all []lb.PortSlice) {
	if len(all) == 0 {
		return
	}

	byAddress := map[netip.Addr][]lb.PortSlice{}
	for _, s := range all {
		byAddress[s.Address] = append(byAddress[s.Address], s)
	}

	for i, s := range services {
		var inUse []lb.PortSlice
		for _, a := range s.Addresses {
			inUse = append(inUse, byAddress[a]...)
		}

		isInUse := func(p lb.Port) bool {
			return slices.ContainsFunc(inUse, func(s lb.PortSlice) bool {
				return s.Has(p.Port)
			})
		}
		if slices.ContainsFunc(s.Ports, isInUse) {
			services[i] = withoutPorts(r, s, isInUse)
		}
	}
}

// withoutPorts returns a Service that does not serve the ports that pods send from.
func withoutPorts(r *problemList, old *lb.Service, isInUse func(lb.Port) bool) *lb.Service {
	s := *old
	s.Ports = nil
	s.Unserved = slices.Clone(old.Unserved)
	var closed []string
	for _, p := range old.Ports {
		if isInUse(p) {
			s.Unserved = append(s.Unserved, p)
			closed = append(closed, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		} else {
			s.Ports = append(s.Ports, p)
		}
	}

	r.add(ServiceObject(s.Key), lb.PortClash,
		"port %s is not served: pods send from ports of this range of the address (EgressAllocation)",
		lb.SomeOf(closed))
	return &s
}
