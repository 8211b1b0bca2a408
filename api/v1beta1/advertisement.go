package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AdvertisementScope holds the selectors that both kinds of advertisement have.
type AdvertisementScope struct {
	// IPAddressPools by name. If ipAddressPoolSelectors is empty too, all pools are selected.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	IPAddressPools []string `json:"ipAddressPools,omitempty"`

	// IPAddressPoolSelectors by the pool's labels; a pool that matches one of them is selected.
	IPAddressPoolSelectors LabelSelectors `json:"ipAddressPoolSelectors,omitempty"`

	// NodeSelectors by the node's labels; a node that matches one of them may announce. None means all nodes.
	NodeSelectors LabelSelectors `json:"nodeSelectors,omitempty"`

	// ServiceSelectors by the Service's labels; a Service that matches one of them is announced. None means all.
	ServiceSelectors LabelSelectors `json:"serviceSelectors,omitempty"`
}

// L2Advertisement makes one node answer ARP and NDP for each address of the selected pools.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=l2adv,categories=holdfast
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=`.spec.ipAddressPools`
// +kubebuilder:printcolumn:name="Interfaces",type=string,JSONPath=`.spec.interfaces`
// +kubebuilder:printcolumn:name="Pool selectors",type=string,JSONPath=`.spec.ipAddressPoolSelectors`,priority=1
// +kubebuilder:printcolumn:name="Node selectors",type=string,JSONPath=`.spec.nodeSelectors`,priority=1
// +kubebuilder:printcolumn:name="Service selectors",type=string,JSONPath=`.spec.serviceSelectors`,priority=1
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type L2Advertisement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   L2AdvertisementSpec `json:"spec,omitempty"`
	Status Status              `json:"status,omitempty"`
}

// L2AdvertisementSpec selects the addresses to announce by ARP and NDP, with their nodes and interfaces.
type L2AdvertisementSpec struct {
	AdvertisementScope `json:",inline"`

	// Interfaces to announce on, by exact name. None means every usable link of the node.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	// +listType=set
	Interfaces []string `json:"interfaces,omitempty"`

	// PreferredNodeSelectors rank nodes: of the nodes that can announce, the node with the highest sum of weights does.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	PreferredNodeSelectors []PreferredNodeSelector `json:"preferredNodeSelectors,omitempty"`
}

// PreferredNodeSelector gives a weight to the nodes that match a selector.
type PreferredNodeSelector struct {
	// Weight is added to a node's sum.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight"`

	// Preference by the node's labels.
	Preference metav1.LabelSelector `json:"preference"`
}

// +kubebuilder:object:root=true

// L2AdvertisementList is what the API server lists.
type L2AdvertisementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []L2Advertisement `json:"items"`
}

// BGPAdvertisement makes nodes advertise routes to the addresses of the selected pools.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=bgpadv,categories=holdfast
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=`.spec.ipAddressPools`
// +kubebuilder:printcolumn:name="Peers",type=string,JSONPath=`.spec.peers`
// +kubebuilder:printcolumn:name="Pool selectors",type=string,JSONPath=`.spec.ipAddressPoolSelectors`,priority=1
// +kubebuilder:printcolumn:name="Node selectors",type=string,JSONPath=`.spec.nodeSelectors`,priority=1
// +kubebuilder:printcolumn:name="Service selectors",type=string,JSONPath=`.spec.serviceSelectors`,priority=1
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BGPAdvertisement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BGPAdvertisementSpec `json:"spec,omitempty"`
	Status Status               `json:"status,omitempty"`
}

// BGPAdvertisementSpec selects the addresses to advertise by BGP, with their attributes and peers.
//
// +kubebuilder:validation:XValidation:rule="!has(self.serviceSelectors) || size(self.serviceSelectors) == 0 || self.aggregationLength == 32 && self.aggregationLengthV6 == 128",message="serviceSelectors pick single addresses and cannot be aggregated: leave aggregationLength at 32 and aggregationLengthV6 at 128"
type BGPAdvertisementSpec struct {
	AdvertisementScope `json:",inline"`

	// AggregationLength is the prefix length of IPv4 routes.
	// +kubebuilder:default=32
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	AggregationLength *int32 `json:"aggregationLength,omitempty"`

	// AggregationLengthV6 is the prefix length of IPv6 routes.
	// +kubebuilder:default=128
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	AggregationLengthV6 *int32 `json:"aggregationLengthV6,omitempty"`

	// LocalPref is the LOCAL_PREF sent to peers of our own AS (RFC 4271 section 5.1.5); 0 is not sent.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	LocalPref int64 `json:"localPref,omitempty"`

	// ASPathPrepend is the number of additional times that our AS is in AS_PATH, so that routers prefer other routes. It
	// has no effect on peers of our own AS.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=32
	ASPathPrepend int32 `json:"asPathPrepend,omitempty"`

	// MED is the MULTI_EXIT_DISC of the routes (RFC 4271 section 5.1.4). Of several routes from one neighbouring AS a
	// router prefers the lowest MED. By default none is sent.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	MED *int64 `json:"med,omitempty"`

	// Communities of the routes: "65000:100" (RFC 1997), "large:64500:1:2" (RFC 8092), a well-known name
	// (no-export, no-advertise, no-export-subconfed, no-peer, blackhole, graceful-shutdown), or a name from a Community.
	// +kubebuilder:validation:MaxItems=63
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^([0-9]{1,5}:[0-9]{1,5}|large:[0-9]{1,10}:[0-9]{1,10}:[0-9]{1,10}|[A-Za-z][A-Za-z0-9_.-]*)$`
	// +kubebuilder:validation:items:XValidation:rule="!self.contains(':') || self.replace('large:', '').split(':').all(n, int(n) <= (self.startsWith('large:') ? 4294967295 : 65535))",message="the numbers of a community go to 65535 (65000:100), the numbers of a large community to 4294967295 (large:4200000000:1:2)"
	// +listType=set
	Communities []string `json:"communities,omitempty"`

	// Peers by BGPPeer name. None means all.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	Peers []string `json:"peers,omitempty"`
}

// +kubebuilder:object:root=true

// BGPAdvertisementList is what the API server lists.
type BGPAdvertisementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BGPAdvertisement `json:"items"`
}
