package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IPAddressPool is a supply of addresses for Services of type LoadBalancer.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=ipap,categories=holdfast
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`
// +kubebuilder:printcolumn:name="Auto",type=boolean,JSONPath=`.spec.autoAssign`
// +kubebuilder:printcolumn:name="V4 Used",type=integer,JSONPath=`.status.assignedIPv4`
// +kubebuilder:printcolumn:name="V4 Free",type=integer,JSONPath=`.status.availableIPv4`
// +kubebuilder:printcolumn:name="V6 Used",type=integer,JSONPath=`.status.assignedIPv6`
// +kubebuilder:printcolumn:name="V6 Free",type=integer,JSONPath=`.status.availableIPv6`
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPAddressPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec IPAddressPoolSpec `json:"spec"`
	// +optional
	Status IPAddressPoolStatus `json:"status,omitempty"`
}

// IPAddressPoolSpec is what the administrator wants of a pool.
type IPAddressPoolSpec struct {
	// Addresses of the pool: each item is a prefix (192.0.2.0/26), an inclusive range
	// (192.0.2.10-192.0.2.20) or one address. IPv4 and IPv6 may be mixed. Pools must not
	// overlap: the elder pool keeps what both claim.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=96
	// +kubebuilder:validation:XValidation:rule="self.all(a, isCIDR(a.trim()) || isIP(a.trim()) || a.split('-').size() == 2 && a.split('-').all(e, isIP(e.trim())))",message="each address must be a prefix (192.0.2.0/26), a range (192.0.2.10-192.0.2.20) or a single address"
	// +kubebuilder:validation:XValidation:rule="self.all(a, !a.trim().endsWith('/0'))",message="a pool cannot hold every address: replace /0 by the prefix that is yours to give"
	// +listType=atomic
	Addresses []string `json:"addresses"`

	// AutoAssign false keeps the pool for Services that ask for it or for one of its addresses.
	// +kubebuilder:default=true
	// +optional
	AutoAssign *bool `json:"autoAssign,omitempty"`

	// AvoidBuggyIPs leaves out IPv4 addresses that end in .0 and .255.
	// +kubebuilder:default=false
	// +optional
	AvoidBuggyIPs bool `json:"avoidBuggyIPs,omitempty"`

	// ServiceAllocation restricts which Services the pool serves.
	// +optional
	ServiceAllocation *ServiceAllocation `json:"serviceAllocation,omitempty"`
}

// ServiceAllocation restricts a pool to some namespaces and Services. Where
// namespaces and serviceSelectors are both given, both must allow a Service.
// A selector that matches nothing restricts to nothing.
type ServiceAllocation struct {
	// Priority among the pools that may serve a Service: the lowest number is tried first, 0 is last.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Priority int `json:"priority,omitempty"`

	// Namespaces by name.
	// +kubebuilder:validation:MaxItems=256
	// +listType=set
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`

	// NamespaceSelectors by label; a namespace matched by one of them is allowed.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors,omitempty"`

	// ServiceSelectors by the Service's labels; a Service matched by one of them is allowed.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	ServiceSelectors []metav1.LabelSelector `json:"serviceSelectors,omitempty"`
}

// IPAddressPoolStatus is what Holdfast reports of a pool.
type IPAddressPoolStatus struct {
	Status `json:",inline"`

	// AssignedIPv4 counts the IPv4 addresses held by Services.
	// +optional
	AssignedIPv4 int64 `json:"assignedIPv4"`
	// AssignedIPv6 counts the IPv6 addresses held by Services.
	// +optional
	AssignedIPv6 int64 `json:"assignedIPv6"`
	// AvailableIPv4 counts the IPv4 addresses that can still be given.
	// +optional
	AvailableIPv4 int64 `json:"availableIPv4"`
	// AvailableIPv6 counts the IPv6 addresses that can still be given, at most 2^63-1.
	// +optional
	AvailableIPv6 int64 `json:"availableIPv6"`
}

// IPAddressPoolList is a list of pools.
//
// +kubebuilder:object:root=true
type IPAddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IPAddressPool `json:"items"`
}
