package main

import (
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// unserved returns the Services with externalTrafficPolicy Local whose endpoints on this node kube-proxy does not serve yet.
// Connections to a new address have a head start, unless kube-proxy knows the Service already, and drops them.
func (w *syncer) unserved(in inputs) map[lb.Key]bool {
	here := map[lb.Key]kubeproxy.HealthPort{}
	filtered := w.filter.inForce()
	for i := range in.state.Services {
		s := &in.state.Services[i]
		if s.Local && s.ServingNodes[w.node] && s.HealthPort != 0 {
			here[s.Key] = kubeproxy.HealthPort{
				Addresses: in.state.Nodes[w.node].Addresses, Port: s.HealthPort, HeadStart: filtered && len(in.fresh[s.Key]) > 0,
			}
		}
	}
	return w.endpoints.Set(here)
}
