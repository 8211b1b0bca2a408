package config

import (
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// endpoints is where a Service can be served.
type endpoints struct {
	nodes map[string]bool
	// serving: there is one; anywhere: there is one without a node.
	serving, anywhere bool
}

func endpointsByService(objects []*discoveryv1.EndpointSlice) map[lb.Key]endpoints {
	out := map[lb.Key]endpoints{}
	for _, slice := range objects {
		service := slice.Labels[discoveryv1.LabelServiceName]
		if service == "" {
			continue
		}
		key := lb.Key{Namespace: slice.Namespace, Name: service}
		e := out[key]
		for _, endpoint := range slice.Endpoints {
			if canServe(endpoint.Conditions) {
				e.add(endpoint.NodeName)
			}
		}
		out[key] = e
	}
	return out
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

// canServe follows the API: an unknown readiness counts as ready, and a pod that
// terminates may go on serving what it has. publishNotReadyAddresses is in Ready already.
func canServe(c discoveryv1.EndpointConditions) bool {
	return c.Ready == nil || *c.Ready || c.Serving != nil && *c.Serving
}
