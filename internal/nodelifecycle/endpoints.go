package nodelifecycle

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// pod that backs Services.
type pod struct {
	namespace, name string
	uid             types.UID
	node            string
	// services of ours that it backs, sorted.
	services []lb.Key
	// handled is when it was written, or found to need no write.
	handled time.Time
}

// toWithdraw returns the ready pods on dead nodes, of Services that are served, but for the last endpoints of any
// Service, of ours or not: without them nothing would serve it, and if we are wrong about the nodes, they do.
func toWithdraw(endpoints []*discoveryv1.EndpointSlice, served func(lb.Key) bool, dead map[string]bool) []pod {
	last := lastPods(endpoints, dead)
	return podsWhere(endpoints, func(service lb.Key, e *discoveryv1.Endpoint) bool {
		return ready(e) && dead[nodeOf(e)] && !last[e.TargetRef.UID] && served(service)
	})
}

// lastPods returns the ready pods of the Services all of whose ready pods are on dead nodes.
func lastPods(endpoints []*discoveryv1.EndpointSlice, dead map[string]bool) map[types.UID]bool {
	left := map[lb.Key]bool{}
	for service, e := range podEndpoints(endpoints) {
		if ready(e) && !dead[nodeOf(e)] {
			left[service] = true
		}
	}
	last := map[types.UID]bool{}
	for service, e := range podEndpoints(endpoints) {
		if ready(e) && !left[service] && service.Name != "" {
			last[e.TargetRef.UID] = true
		}
	}
	return last
}

// toRestore returns the pods on a node that are not ready, of any Service: which
// Services we serve may have changed since we wrote.
func toRestore(endpoints []*discoveryv1.EndpointSlice, node string) []pod {
	return podsWhere(endpoints, func(_ lb.Key, e *discoveryv1.Endpoint) bool { return !ready(e) && nodeOf(e) == node })
}

// podsWhere returns the pods of the endpoints that match, sorted.
func podsWhere(endpoints []*discoveryv1.EndpointSlice, match func(lb.Key, *discoveryv1.Endpoint) bool) []pod {
	found := map[types.UID]pod{}
	for service, e := range podEndpoints(endpoints) {
		if !match(service, e) {
			continue
		}
		p, known := found[e.TargetRef.UID]
		if !known {
			p = pod{namespace: e.TargetRef.Namespace, name: e.TargetRef.Name, uid: e.TargetRef.UID, node: nodeOf(e)}
		}
		// A Service of two families has the pod twice.
		if !slices.Contains(p.services, service) {
			p.services = append(p.services, service)
			slices.SortFunc(p.services, lb.Key.Compare)
		}
		found[p.uid] = p
	}
	return slices.SortedFunc(maps.Values(found), func(a, b pod) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name), cmp.Compare(a.uid, b.uid))
	})
}

// podEndpoints yields every endpoint that is a pod, with its Service.
func podEndpoints(endpoints []*discoveryv1.EndpointSlice) iter.Seq2[lb.Key, *discoveryv1.Endpoint] {
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
func ready(e *discoveryv1.Endpoint) bool { return ptr.Deref(e.Conditions.Ready, true) }

// nodeOf returns the node of an endpoint, "" where it has none.
func nodeOf(e *discoveryv1.Endpoint) string { return ptr.Deref(e.NodeName, "") }

// NotReady returns the nodes that Kubernetes itself does not call ready.
func NotReady(nodes []*corev1.Node) map[string]bool {
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
