package config

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// endpoints are the nodes that can serve a Service.
type endpoints struct {
	nodes map[string]bool
	// serving: at least one endpoint serves; anywhere: at least one has no node.
	serving, anywhere bool
}

// compileEndpoints returns what serves of one slice, and the Service that it is of.
func compileEndpoints(slice *discoveryv1.EndpointSlice) (lb.Key, endpoints) {
	var e endpoints
	for _, endpoint := range slice.Endpoints {
		if canServe(endpoint.Conditions) {
			e.add(endpoint.NodeName)
		}
	}
	return lb.Key{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}, e
}

// endpointsOf returns the endpoints of a Service, and the slices of Services behind it.
func endpointsOf(key lb.Key, slices []*part[discoveryv1.EndpointSlice, endpoints]) (endpoints, []*part[discoveryv1.EndpointSlice, endpoints]) {
	for len(slices) > 0 && slices[0].key.Compare(key) < 0 {
		slices = slices[1:]
	}
	n := 0
	for n < len(slices) && slices[n].key == key {
		n++
	}
	if n == 1 {
		return slices[0].made, slices[1:]
	}
	var all endpoints
	for _, p := range slices[:n] {
		all.serving, all.anywhere = all.serving || p.made.serving, all.anywhere || p.made.anywhere
		for node := range p.made.nodes {
			all.add(&node)
		}
	}
	return all, slices[n:]
}

func (e *endpoints) add(node *string) {
	e.serving = true
	if node == nil || *node == "" {
		e.anywhere = true
		return
	}
	if e.nodes == nil {
		e.nodes = map[string]bool{}
	}
	e.nodes[*node] = true
}

// canServe follows the API: unknown readiness counts as ready, and a terminating
// pod may continue to serve. Ready already includes publishNotReadyAddresses.
func canServe(c discoveryv1.EndpointConditions) bool {
	return c.Ready == nil || *c.Ready || c.Serving != nil && *c.Serving
}

// LostEndpoints returns the addresses of endpoints on the given nodes that cannot serve and
// belong to Services that opt serves. It leaves out an address that can serve another
// Service, or that by now serves on another node.
func (opt Options) LostEndpoints(services []*corev1.Service, slices []*discoveryv1.EndpointSlice, nodes map[string]bool) map[netip.Addr]bool {
	served := map[lb.Key]bool{}
	for _, s := range services {
		if opt.Serves(s) {
			served[lb.Key{Namespace: s.Namespace, Name: s.Name}] = true
		}
	}
	lost, serving := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, slice := range slices {
		ours := served[lb.Key{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}]
		for _, e := range slice.Endpoints {
			missed := e.NodeName != nil && nodes[*e.NodeName]
			for _, text := range e.Addresses {
				a, err := netip.ParseAddr(text)
				switch {
				case err != nil: // a host name, or unreadable
				case canServe(e.Conditions):
					serving[a] = true
				case ours && missed:
					lost[a] = true
				}
			}
		}
	}
	for a := range serving {
		delete(lost, a)
	}
	return lost
}
