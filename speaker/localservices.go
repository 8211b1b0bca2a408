package main

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// unserved returns the Services with externalTrafficPolicy Local whose endpoints on this node kube-proxy does not serve
// yet.
func (w *Loop) unserved() (out map[lb.Key]bool) {
	for _, key := range w.sources.Endpoints.Waiting() {
		if out == nil {
			out = map[lb.Key]bool{}
		}
		out[key] = true
	}
	return out
}

// healthPorts returns the ports where kube-proxy reports which endpoints of a Service it serves on this node; none
// where another program delivers. An address with a head start is served before kube-proxy serves it, unless kube-proxy
// already drops the Service's packets.
func (w *Loop) healthPorts(in inputs) map[lb.Key]kubeproxy.HealthPort {
	if w.options.OtherDataPath {
		return nil
	}

	w.localServices.update(in.state.Services, w.node)
	own := in.state.Nodes[w.node].Own(in.state.Here.Addresses)

	ports := map[lb.Key]kubeproxy.HealthPort{}
	for key, s := range w.localServices.withEndpoints {
		families := readyFamilies(s, w.node)
		isOther := func(a netip.Addr) bool { return !slices.Contains(families, lb.FamilyOf(a)) }
		ports[key] = kubeproxy.HealthPort{
			Addresses: slices.DeleteFunc(slices.Clone(own), isOther),
			Port:      s.HealthPort,
			HeadStart: func() bool { return w.sinks.HeadStart.Leads(key, s.Addresses) },
		}
	}
	return ports
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

// localServices are the Services with externalTrafficPolicy Local that have an endpoint on this node.
type localServices struct {
	// all are the Services of the last update.
	all           []*lb.Service
	withEndpoints map[lb.Key]*lb.Service
}

// update reads the Services that changed since the last update.
func (l *localServices) update(services []*lb.Service, node string) {
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
