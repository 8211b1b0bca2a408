package facts

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// LocalServices are the Services with externalTrafficPolicy Local that have an endpoint on this node.
type LocalServices struct {
	// all are the Services of the last update.
	all           []*lb.Service
	withEndpoints map[lb.Key]*lb.Service
}

// HealthPorts returns the ports where kube-proxy reports which endpoints of a Service it serves on a node. An address
// with a head start is served before kube-proxy serves it, unless kube-proxy already drops the Service's packets; leads
// reports whether all addresses of a Service have one.
func (l *LocalServices) HealthPorts(
	s lb.State,
	node string,
	leads func(lb.Key, []netip.Addr) bool,
) map[lb.Key]kubeproxy.HealthPort {
	l.update(s.Services, node)
	own := s.Nodes[node].Own(s.Here.Addresses)

	ports := map[lb.Key]kubeproxy.HealthPort{}
	for key, service := range l.withEndpoints {
		families := readyFamilies(service, node)
		isOther := func(a netip.Addr) bool { return !slices.Contains(families, lb.FamilyOf(a)) }
		ports[key] = kubeproxy.HealthPort{
			Addresses: slices.DeleteFunc(slices.Clone(own), isOther),
			Port:      service.HealthPort,
			HeadStart: func() bool { return leads(key, service.Addresses) },
		}
	}
	return ports
}

// update reads the Services that changed since the last update.
func (l *LocalServices) update(services []*lb.Service, node string) {
	if l.withEndpoints == nil {
		l.withEndpoints = map[lb.Key]*lb.Service{}
	}
	lb.Changes(l.all, services, func(before, s *lb.Service, _, _ int) {
		if before != nil {
			delete(l.withEndpoints, before.Key)
		}
		if s != nil && s.Local && s.HealthPort != 0 && len(readyFamilies(s, node)) > 0 {
			l.withEndpoints[s.Key] = s
		}
	})
	l.all = services
}

// readyFamilies returns the families in which a Service has a ready endpoint on a node. Only such endpoints count at
// its health port, which kube-proxy of each family opens on the node's addresses of the family.
func readyFamilies(s *lb.Service, node string) (out []lb.Family) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		if s.Serves(node, f) && !s.Terminates(node, f) {
			out = append(out, f)
		}
	}
	return out
}
