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

// backingPod is a pod that backs Services.
type backingPod struct {
	namespace string
	name      string
	uid       types.UID
	node      string
	// services are the selected Services that the pod backs, sorted.
	services []lb.Key
	// handledAt is the time at which the pod was written, or was found to need no write.
	handledAt time.Time
}

// toWithdraw returns the ready pods on dead nodes that back served Services. It leaves out pods without which a
// Service, served or not, would have no ready pod: if the decision about the nodes is wrong, those pods still serve it.
func toWithdraw(
	endpoints []*discoveryv1.EndpointSlice,
	isServed func(lb.Key) bool,
	dead map[string]bool,
) []backingPod {
	last := lastPods(endpoints, dead)
	return podsWhere(endpoints, func(service lb.Key, e *discoveryv1.Endpoint) bool {
		isOnDead := isReady(e) && dead[nodeOf(e)]
		isLast := last[e.TargetRef.UID]
		return isOnDead && !isLast && isServed(service)
	})
}

// lastPods returns the ready pods of the Services that have ready pods on dead nodes only.
func lastPods(endpoints []*discoveryv1.EndpointSlice, dead map[string]bool) map[types.UID]bool {
	hasOthers := map[lb.Key]bool{}
	for service, e := range podEndpoints(endpoints) {
		if isReady(e) && !dead[nodeOf(e)] {
			hasOthers[service] = true
		}
	}

	last := map[types.UID]bool{}
	for service, e := range podEndpoints(endpoints) {
		hasService := service.Name != ""
		if hasService && isReady(e) && !hasOthers[service] {
			last[e.TargetRef.UID] = true
		}
	}

	return last
}

// toRestore returns the pods on a node that are not ready and back any Service: the set of served Services may have
// changed since the pods were withdrawn.
func toRestore(endpoints []*discoveryv1.EndpointSlice, node string) []backingPod {
	return podsWhere(endpoints, func(_ lb.Key, e *discoveryv1.Endpoint) bool {
		return !isReady(e) && nodeOf(e) == node
	})
}

// podsWhere returns the pods of the endpoints that match, sorted by namespace and name.
func podsWhere(endpoints []*discoveryv1.EndpointSlice, match func(lb.Key, *discoveryv1.Endpoint) bool) []backingPod {
	found := map[types.UID]backingPod{}
	for service, e := range podEndpoints(endpoints) {
		if !match(service, e) {
			continue
		}

		ref := e.TargetRef
		p, ok := found[ref.UID]
		if !ok {
			p = backingPod{
				namespace: ref.Namespace,
				name:      ref.Name,
				uid:       ref.UID,
				node:      nodeOf(e),
			}
		}

		// A Service of two families has an EndpointSlice with the pod for each.
		if !slices.Contains(p.services, service) {
			p.services = append(p.services, service)
			slices.SortFunc(p.services, lb.Key.Compare)
		}

		found[p.uid] = p
	}

	return slices.SortedFunc(maps.Values(found), func(a, b backingPod) int {
		return cmp.Or(
			cmp.Compare(a.namespace, b.namespace),
			cmp.Compare(a.name, b.name),
			cmp.Compare(a.uid, b.uid),
		)
	})
}

// podEndpoints yields every endpoint that is a pod, with its Service.
func podEndpoints(endpoints []*discoveryv1.EndpointSlice) iter.Seq2[lb.Key, *discoveryv1.Endpoint] {
	return func(yield func(lb.Key, *discoveryv1.Endpoint) bool) {
		for _, s := range endpoints {
			service := lb.Key{
				Namespace: s.Namespace,
				Name:      s.Labels[discoveryv1.LabelServiceName],
			}
			for i := range s.Endpoints {
				e := &s.Endpoints[i]
				isPod := e.TargetRef != nil && e.TargetRef.Kind == "Pod"
				if isPod && !yield(service, e) {
					return
				}
			}
		}
	}
}

// isReady reports whether kube-proxy sends new connections to the endpoint. An unknown state counts as ready.
func isReady(e *discoveryv1.Endpoint) bool {
	return ptr.Deref(e.Conditions.Ready, true)
}

// nodeOf returns the node of an endpoint, or "" if it has none.
func nodeOf(e *discoveryv1.Endpoint) string { return ptr.Deref(e.NodeName, "") }

// NotReady returns the nodes that Kubernetes does not call ready.
func NotReady(nodes []*corev1.Node) map[string]bool {
	out := map[string]bool{}
	for _, n := range nodes {
		for _, c := range n.Status.Conditions {
			isNotReady := c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
			if isNotReady {
				out[n.Name] = true
			}
		}
	}

	return out
}
