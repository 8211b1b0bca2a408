package main

import (
	"cmp"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// backend is a pod that backs Services.
type backend struct {
	namespace, name string
	uid             types.UID
	node            string
	// services of ours that it backs, sorted.
	services []lb.Key
}

// toWithdraw returns the ready pods on dead nodes, of Services that are served. A
// Service whose endpoints are all on dead nodes asks for none: there would be
// nobody to serve it, and if we are wrong about the nodes, somebody does.
func toWithdraw(endpoints []*discoveryv1.EndpointSlice, served map[lb.Key]bool, dead map[string]bool) []backend {
	left := map[lb.Key]bool{}
	for service, e := range backends(endpoints) {
		if ready(e) && (e.NodeName == nil || !dead[*e.NodeName]) {
			left[service] = true
		}
	}
	found := map[types.UID]*backend{}
	for service, e := range backends(endpoints) {
		if served[service] && left[service] && ready(e) && e.NodeName != nil && dead[*e.NodeName] {
			collect(found, service, e)
		}
	}
	return sorted(found)
}

// toRestore returns the pods on a node that are not ready, of whatever Services:
// these may have changed since we wrote.
func toRestore(endpoints []*discoveryv1.EndpointSlice, node string) []backend {
	found := map[types.UID]*backend{}
	for service, e := range backends(endpoints) {
		if !ready(e) && e.NodeName != nil && *e.NodeName == node {
			collect(found, service, e)
		}
	}
	return sorted(found)
}

// backends yields every endpoint that is a pod, with its Service.
func backends(endpoints []*discoveryv1.EndpointSlice) func(yield func(lb.Key, *discoveryv1.Endpoint) bool) {
	return func(yield func(lb.Key, *discoveryv1.Endpoint) bool) {
		for _, s := range endpoints {
			service := lb.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
			for i := range s.Endpoints {
				e := &s.Endpoints[i]
				if e.TargetRef != nil && e.TargetRef.Kind == "Pod" && !yield(service, e) {
					return
				}
			}
		}
	}
}

// ready reports whether kube-proxy sends new connections there: what is unknown counts as ready.
func ready(e *discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

func collect(found map[types.UID]*backend, service lb.Key, e *discoveryv1.Endpoint) {
	ref := e.TargetRef
	b := found[ref.UID]
	if b == nil {
		b = &backend{namespace: ref.Namespace, name: ref.Name, uid: ref.UID, node: *e.NodeName}
		found[ref.UID] = b
	}
	// A Service of two families has the pod twice.
	if !slices.Contains(b.services, service) {
		b.services = append(b.services, service)
	}
}

func sorted(found map[types.UID]*backend) []backend {
	var out []backend
	for _, b := range found {
		slices.SortFunc(b.services, lb.Key.Compare)
		out = append(out, *b)
	}
	slices.SortFunc(out, func(a, b backend) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name), cmp.Compare(a.uid, b.uid))
	})
	return out
}

// givenUp returns the nodes that Kubernetes itself does not call ready.
func givenUp(nodes []*corev1.Node) map[string]bool {
	out := map[string]bool{}
	for _, n := range nodes {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				out[n.Name] = true
			}
		}
	}
	return out
}
