package main

import (
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// unserved returns the Services with externalTrafficPolicy Local whose endpoints on this node kube-proxy does not serve yet.
func (w *syncer) unserved(in inputs) map[lb.Key]bool { return w.endpoints.Set(w.healthPorts(in)) }

// healthPorts returns where kube-proxy says what it serves here. Connections to addresses with a head start are served before, unless
// kube-proxy knows the Service already, and drops them.
func (w *syncer) healthPorts(in inputs) map[lb.Key]kubeproxy.HealthPort {
	own := in.state.Nodes[w.node].Own(in.state.Here.Addresses)
	here := map[lb.Key]kubeproxy.HealthPort{}
	for i := range in.state.Services {
		s := &in.state.Services[i]
		if s.Local && s.ServingNodes[w.node] && s.HealthPort != 0 {
			here[s.Key] = kubeproxy.HealthPort{
				Addresses: own, Port: s.HealthPort, HeadStart: func() bool { return w.headstart.Leads(s.Key, s.Addresses) },
			}
		}
	}
	return here
}
