package config

import (
	"cmp"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	KindAllocation       = "EgressAllocation"
)

// Objects are all API objects that Holdfast reads.
type Objects struct {
	Pools             []*v1beta1.IPAddressPool
	PoolMemories      []*v1beta1.PoolMemory
	EgressAllocations []*v1beta1.EgressAllocation
	FloatingIPs       []*v1beta1.FloatingIP
	L2Advertisements  []*v1beta1.L2Advertisement
	BGPAdvertisements []*v1beta1.BGPAdvertisement
	Peers             []*v1beta1.BGPPeer
	BFDProfiles       []*v1beta1.BFDProfile
	Communities       []*v1beta1.Community
	Services          []*corev1.Service
	EndpointSlices    []*discoveryv1.EndpointSlice
	Nodes             []*corev1.Node

	// ServicesByKey, SlicesByKey and NodesByKey replace Services, EndpointSlices and Nodes in a daemon, whose objects
	// are in maps. Informers share these objects: they must not be changed.
	ServicesByKey lb.Map[lb.Key, *corev1.Service]
	SlicesByKey   lb.Map[lb.Key, *discoveryv1.EndpointSlice]
	NodesByKey    lb.Map[lb.Key, *corev1.Node]

	// EgressPods are pods that may send from an address of a Service. A speaker has only pods of its node.
	EgressPods []*corev1.Pod
	Namespaces []*corev1.Namespace
	// Secrets are the Secrets of Holdfast's own namespace, which is SecretNamespace.
	Secrets         []*corev1.Secret
	SecretNamespace string
	// ServiceCIDRs are empty if the API server does not have this kind.
	ServiceCIDRs []ServiceCIDR
	// NetworkAddresses are the addresses that the nodes' networks use themselves.
	NetworkAddresses []NetworkAddress
}

// Options select the Services that Holdfast serves, and determine how it reads objects.
type Options struct {
	// LoadBalancerClass is the class that Holdfast serves, holdfast.dev/lb by default.
	LoadBalancerClass string
	// Default reports whether Holdfast also serves Services without a class.
	Default bool
	// IgnoreExcludeLabel lets nodes announce despite the label
	// node.kubernetes.io/exclude-from-external-load-balancers.
	IgnoreExcludeLabel bool
	OpenStack          openstack.Options
	// NoFilter reports whether filtering is turned off: then only kube-proxy enforces source ranges, and limits are not
	// enforced.
	NoFilter bool
	// OtherDataPath reports whether another program than kube-proxy delivers packets. That program alone enforces
	// spec.loadBalancerSourceRanges, and nothing enforces other lists.
	OtherDataPath bool
	// Undeclared is the default of the pools' undeclaredPorts; "" means Drop.
	Undeclared v1beta1.UndeclaredPorts
	// AllowInternal exempts the cluster's own pods and nodes from source ranges, unless a Service says otherwise.
	AllowInternal bool
	// NodeSelector restricts the nodes that announce Services without a node selector; nil restricts nothing. It is the
	// option node-selector of OpenStack's cloud controller manager, and is ignored along with the rest of OpenStack.
	NodeSelector lb.Selector
	// Proxy determines which Services get proxies.
	Proxy ProxyOptions
	// ForSpeaker reports whether the State is for a speaker or proxy. These assign no addresses, so it has neither what
	// Services request nor the addresses that pools withhold.
	ForSpeaker bool
	// MorePorts bounds the ports of all Services of a namespace together, not counting the first port of each. 0 means
	// DefaultMorePorts.
	MorePorts int
}

// Filters reports whether the speakers filter.
func (opt Options) Filters() bool { return !opt.NoFilter && !opt.OtherDataPath }

// Compile returns the State of these objects, and their Problems ordered by object, reason and message. The caller adds
// Members and Now to the State.
func Compile(o Objects, opt Options) (lb.State, []lb.Problem) {
	var c Compiler
	return c.Compile(o, opt)
}

// KeyOf returns the key of an object.
func KeyOf(o metav1.Object) lb.Key {
	return lb.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// ServiceObject returns the object of Problems and Events of a Service.
func ServiceObject(key lb.Key) lb.Object {
	return lb.Object{
		Kind:      KindService,
		Namespace: key.Namespace,
		Name:      key.Name,
	}
}

// valueOr returns the value of an optional field, or the default.
func valueOr[T any](field *T, otherwise T) T {
	if field == nil {
		return otherwise
	}
	return *field
}

// oldestFirst orders objects by creation, then by name: the older object wins a conflict.
func oldestFirst[T metav1.Object](objects []T) []T {
	return slices.SortedFunc(slices.Values(objects), func(a, b T) int {
		return cmp.Or(
			a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time),
			cmp.Compare(a.GetName(), b.GetName()),
		)
	})
}
