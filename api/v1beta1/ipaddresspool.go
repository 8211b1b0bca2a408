package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConditionAddressesFree stands on a pool while machines that are not ours claim addresses of it that nodes
// announce, or are to announce: False, with who claims what. The controller writes it, and takes it away when
// no speaker says so any more.
const ConditionAddressesFree = "AddressesFree"

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

	// Classes that the pool serves. A pool with classes is given to Services that name one of them,
	// and to those that ask for the pool or for one of its addresses. Not spec.loadBalancerClass.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Classes []string `json:"classes,omitempty"`

	// Scope External is for Services that the outside reaches, Internal for those that ask to be internal.
	// Neither is ever served from the other.
	// +kubebuilder:validation:Enum=External;Internal
	// +kubebuilder:default=External
	// +optional
	Scope PoolScope `json:"scope,omitempty"`

	// Tags that Services may choose pools by.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Tags []string `json:"tags,omitempty"`

	// Aliases are names or ids by which others refer to the pool, as the id of an OpenStack network or subnet.
	// Several pools may share one.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	Aliases []string `json:"aliases,omitempty"`

	// Quota bounds what one tenant may hold of the pool.
	// +optional
	Quota *Quota `json:"quota,omitempty"`

	// Sharing says who may share an address of the pool.
	// +optional
	Sharing *Sharing `json:"sharing,omitempty"`

	// ReuseDelay keeps an address from others after its holder gave it back. Its last holder may have
	// it again at once.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="reuseDelay must not be negative: write a duration as 10m or 24h"
	// +optional
	ReuseDelay *metav1.Duration `json:"reuseDelay,omitempty"`

	// SourceRanges are who may reach the addresses of the pool: prefixes or addresses of both families. A
	// Service may narrow them by its own and never widen them. Of a family without any here nobody may.
	// Without the field everybody may whom the Service lets in.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(s, isCIDR(s.trim()) || isIP(s.trim()))",message="each source range must be a prefix (192.0.2.0/24) or a single address"
	// +listType=atomic
	// +optional
	SourceRanges []string `json:"sourceRanges,omitempty"`

	// UndeclaredPorts says what a client hears at a port that no Service declares: nothing (Drop), or what a
	// host says that does not listen there (Reset).
	// +kubebuilder:validation:Enum=Drop;Reset
	// +kubebuilder:default=Drop
	// +optional
	UndeclaredPorts UndeclaredPorts `json:"undeclaredPorts,omitempty"`
}

// UndeclaredPorts is what becomes of packets to ports that no Service declares.
type UndeclaredPorts string

// The ways to refuse them.
const (
	UndeclaredDrop  UndeclaredPorts = "Drop"
	UndeclaredReset UndeclaredPorts = "Reset"
)

// PoolScope is where the addresses of a pool are known.
type PoolScope string

// The scopes of a pool.
const (
	ScopeExternal PoolScope = "External"
	ScopeInternal PoolScope = "Internal"
)

// Quota bounds what one tenant may hold of a pool. Lowering it takes nothing away.
type Quota struct {
	// PerNamespace counts addresses of one namespace, each once, FloatingIPs included.
	// +optional
	PerNamespace *FamilyCount `json:"perNamespace,omitempty"`
}

// FamilyCount is a number of addresses of each family; a family left out is not bounded.
type FamilyCount struct {
	// IPv4 addresses at most.
	// +kubebuilder:validation:Minimum=0
	// +optional
	IPv4 *int32 `json:"ipv4,omitempty"`
	// IPv6 addresses at most.
	// +kubebuilder:validation:Minimum=0
	// +optional
	IPv6 *int32 `json:"ipv6,omitempty"`
}

// Sharing says who may share an address.
type Sharing struct {
	// Scope Namespace lets Services of one namespace share an address, Cluster those of any.
	// +kubebuilder:validation:Enum=Namespace;Cluster
	// +kubebuilder:default=Namespace
	// +optional
	Scope SharingScope `json:"scope,omitempty"`
	// MaxServices that may share one address; 0 is no bound.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxServices int32 `json:"maxServices,omitempty"`
}

// SharingScope is how far an address is shared.
type SharingScope string

// The scopes of sharing.
const (
	ShareNamespace SharingScope = "Namespace"
	ShareCluster   SharingScope = "Cluster"
)

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
	// QuarantinedIPv4 counts the free IPv4 addresses that wait for reuseDelay.
	// +optional
	QuarantinedIPv4 int64 `json:"quarantinedIPv4,omitempty"`
	// QuarantinedIPv6 counts the free IPv6 addresses that wait for reuseDelay.
	// +optional
	QuarantinedIPv6 int64 `json:"quarantinedIPv6,omitempty"`

	// Retained addresses are held although they were cut from the pool.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=address
	// +optional
	Retained []RetainedAddress `json:"retained,omitempty"`
	// RetainedCount counts them all, those included that the list has no room for.
	// +optional
	RetainedCount int64 `json:"retainedCount,omitempty"`

	// Released addresses were given back, the latest first: who had what.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=address
	// +optional
	Released []ReleasedAddress `json:"released,omitempty"`
	// ReleasedForgotten counts what the list had no room for, since the pool was made.
	// +optional
	ReleasedForgotten int64 `json:"releasedForgotten,omitempty"`
}

// RetainedAddress is an address held although it was cut from its pool.
type RetainedAddress struct {
	Address string `json:"address"`
	// Service or FloatingIP that holds it, as NAMESPACE/NAME.
	Service string `json:"service"`
	// Since when it is in the pool no more.
	Since metav1.Time `json:"since"`
}

// ReleasedAddress is an address that was given back.
type ReleasedAddress struct {
	Address string `json:"address"`
	// Time of the release.
	Time metav1.Time `json:"time"`
	// Service or FloatingIP that held it, as NAMESPACE/NAME.
	Service string `json:"service"`
	// UID of the Service or FloatingIP.
	// +optional
	UID string `json:"uid,omitempty"`
}

// IPAddressPoolList is a list of pools.
//
// +kubebuilder:object:root=true
type IPAddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IPAddressPool `json:"items"`
}
