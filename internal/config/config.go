// Package config turns API objects into the values of package lb. It is pure:
// no client, no clock, no log, and its result does not depend on the order of
// its input. An unreadable part becomes a Problem on its object; the rest of
// the object and all other objects stay in force.
package config

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
)

// Kinds of the objects that Problems name.
const (
	KindPool             = "IPAddressPool"
	KindL2Advertisement  = "L2Advertisement"
	KindBGPAdvertisement = "BGPAdvertisement"
	KindPeer             = "BGPPeer"
	KindBFDProfile       = "BFDProfile"
	KindCommunity        = "Community"
	KindService          = "Service"
	KindFloatingIP       = "FloatingIP"
	KindNode             = "Node"
	KindSpeakerState     = "SpeakerState"
)

// Objects are all API objects that Holdfast reads.
type Objects struct {
	Pools             []*v1beta1.IPAddressPool
	PoolMemories      []*v1beta1.PoolMemory
	FloatingIPs       []*v1beta1.FloatingIP
	L2Advertisements  []*v1beta1.L2Advertisement
	BGPAdvertisements []*v1beta1.BGPAdvertisement
	Peers             []*v1beta1.BGPPeer
	BFDProfiles       []*v1beta1.BFDProfile
	Communities       []*v1beta1.Community
	Services          []*corev1.Service
	EndpointSlices    []*discoveryv1.EndpointSlice
	Nodes             []*corev1.Node
	Namespaces        []*corev1.Namespace
	// Secrets of Holdfast's own namespace, which is SecretNamespace.
	Secrets         []*corev1.Secret
	SecretNamespace string
}

// Options select the Services that Holdfast serves and how it reads objects.
type Options struct {
	// LoadBalancerClass is the class that Holdfast serves, holdfast.dev/lb by default.
	LoadBalancerClass string
	// Default: Holdfast also serves Services without a class.
	Default bool
	// IgnoreExcludeLabel lets nodes announce despite the label
	// node.kubernetes.io/exclude-from-external-load-balancers.
	IgnoreExcludeLabel bool
	OpenStack          openstack.Options
	// NoFilter: only kube-proxy enforces source ranges; limits are not enforced.
	NoFilter bool
	// AllowInternal: source ranges do not apply to the cluster's own pods and nodes, unless a Service says otherwise.
	AllowInternal bool
	// NodeSelector restricts the nodes that announce Services without a node selector; nil restricts nothing. It is OCCM's
	// node-selector, and ignored with the rest of OpenStack.
	NodeSelector lb.Selector
	// MorePorts bounds the ports of all Services of a namespace together, beyond the first of each; 0 is DefaultMorePorts.
	MorePorts int
}

// report collects Problems.
type report struct {
	problems []lb.Problem
}

// fault returns a copy of the Problem, for an object that waits because of it.
func (r *report) fault(o lb.Object, reason lb.Reason, format string, args ...any) *lb.Problem {
	p := lb.Problem{Object: o, Reason: reason, Message: fmt.Sprintf(format, args...)}
	r.problems = append(r.problems, p)
	return &p
}

func (r *report) note(o lb.Object, reason lb.Reason, format string, args ...any) {
	r.fault(o, reason, format, args...)
	r.problems[len(r.problems)-1].Note = true
}

func (r *report) sorted() []lb.Problem {
	slices.SortFunc(r.problems, func(a, b lb.Problem) int {
		return cmp.Or(
			cmp.Compare(a.Object.Kind, b.Object.Kind),
			cmp.Compare(a.Object.Namespace, b.Object.Namespace),
			cmp.Compare(a.Object.Name, b.Object.Name),
			cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Message, b.Message),
		)
	})
	return r.problems
}

// oldestFirst orders objects by creation, then by name: the older one wins a conflict.
func oldestFirst[T metav1.Object](objects []T) []T {
	return slices.SortedFunc(slices.Values(objects), func(a, b T) int {
		return cmp.Or(
			a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time),
			cmp.Compare(a.GetName(), b.GetName()),
		)
	})
}

// byName orders cluster-scoped objects by name.
func byName[T metav1.Object](objects []T) []T {
	return slices.SortedFunc(slices.Values(objects), func(a, b T) int { return cmp.Compare(a.GetName(), b.GetName()) })
}
