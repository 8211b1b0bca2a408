package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConditionAddressesFree is False on a pool while foreign machines have or claim addresses of it, and lists them. The controller writes it,
// and removes it when no speaker reports such a machine any more.
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
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPAddressPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   IPAddressPoolSpec   `json:"spec"`
	Status IPAddressPoolStatus `json:"status,omitempty"`
}

// The rule on reversed ranges compares the ends, f and t, by the first of their numbers, x and y, that differ. It begins at n in both texts,
// behind the separator s. Behind a :: only the last numbers are compared: others may be at different places. CEL has no order of addresses,
// so the daemons report what the rule lets pass, such as 2001:db8::1-2001:db8:0::.

// IPAddressPoolSpec is the administrator's configuration of a pool.
type IPAddressPoolSpec struct {
	// Addresses of the pool: each item is a prefix (192.0.2.0/26), an inclusive range
	// (192.0.2.10-192.0.2.20) or one address. IPv4 and IPv6 may be mixed. Pools must not
	// overlap: the older pool keeps what both claim.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=96
	// +kubebuilder:validation:XValidation:rule="self.all(a, isCIDR(a.trim()) || isIP(a.trim()) || a.split('-').size() == 2 && a.split('-').all(e, isIP(e.trim())))",message="each address must be a prefix (192.0.2.0/26), a range (192.0.2.10-192.0.2.20) or a single address"
	// +kubebuilder:validation:XValidation:rule="self.all(a, !a.contains('-') || [a.substring(0, a.indexOf('-')).trim().lowerAscii()].all(f, [a.substring(a.indexOf('-') + 1).trim().lowerAscii()].all(t, [f.contains(':') ? ':' : '.'].all(s, ![0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35].exists(n, n <= f.size() && n <= t.size() && (n == 0 || t.substring(n - 1, n) == s) && f.startsWith(t.substring(0, n)) && (!t.substring(0, n).contains('::') || !f.substring(n).contains(':') && !t.substring(n).contains(':')) && [f.substring(n, (f + s).indexOf(s, n))].exists(x, [t.substring(n, (t + s).indexOf(s, n))].exists(y, x.size() < 5 && !x.startsWith('0') && (x.size() > y.size() || x.size() == y.size() && x > y))))))))",message="a range begins with its lowest address: write 192.0.2.10-192.0.2.20 for 192.0.2.20-192.0.2.10"
	// +kubebuilder:validation:XValidation:rule="self.all(a, !a.trim().endsWith('/0'))",message="a pool cannot hold every address: replace /0 by the prefix that is yours to give"
	// +listType=atomic
	Addresses []string `json:"addresses"`

	// AutoAssign false reserves the pool for Services that request it or one of its addresses.
	// +kubebuilder:default=true
	AutoAssign *bool `json:"autoAssign,omitempty"`

	// AvoidBuggyIPs leaves out IPv4 addresses that end in .0 and .255.
	// +kubebuilder:default=false
	AvoidBuggyIPs bool `json:"avoidBuggyIPs,omitempty"`

	// ServiceAllocation restricts which Services the pool serves.
	ServiceAllocation *ServiceAllocation `json:"serviceAllocation,omitempty"`

	// Classes that the pool serves. A pool with classes serves Services that name one of them,
	// and those that request the pool or one of its addresses. This is not spec.loadBalancerClass.
	Classes Words `json:"classes,omitempty"`

	// Scope External is for Services that are reached from outside, Internal for those that request to be
	// internal. Neither kind of Service ever gets an address of the other scope.
	// +kubebuilder:validation:Enum=External;Internal
	// +kubebuilder:default=External
	Scope PoolScope `json:"scope,omitempty"`

	// Tags by which Services may choose pools.
	Tags Words `json:"tags,omitempty"`

	// Aliases are other names or ids of the pool, by which Services and FloatingIPs may ask for it: a former name, or the id of an
	// OpenStack network or subnet. Pools may share one.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	Aliases []string `json:"aliases,omitempty"`

	// Quota limits how many addresses of the pool one tenant may hold.
	Quota *Quota `json:"quota,omitempty"`

	// Sharing says who may share an address of the pool.
	Sharing *Sharing `json:"sharing,omitempty"`

	// ReuseDelay is how long only its last holder may get a released address again.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="reuseDelay must not be negative: write a duration as 10m or 24h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	ReuseDelay *metav1.Duration `json:"reuseDelay,omitempty"`

	// SourceRanges are the sources that may reach the addresses of the pool: prefixes or addresses of both
	// families. The source ranges of a Service may narrow them and never widen them. No source of a family
	// without an entry may. Without the field only the Service's own source ranges apply.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(s, isCIDR(s.trim()) || isIP(s.trim()))",message="each source range must be a prefix (192.0.2.0/24) or a single address"
	// +listType=atomic
	SourceRanges []string `json:"sourceRanges,omitempty"`

	// UndeclaredPorts is the answer to clients at a port that no Service declares: nothing (Drop), the answer
	// of a host that does not listen there (Reset), or what the node and kube-proxy make of it (Allow), whatever source
	// ranges say. Without it the chart's speaker.filter.undeclaredPorts holds.
	// +kubebuilder:validation:Enum=Drop;Reset;Allow
	UndeclaredPorts UndeclaredPorts `json:"undeclaredPorts,omitempty"`
}

// UndeclaredPorts is what happens to packets to ports that no Service declares.
type UndeclaredPorts string

const (
	UndeclaredDrop  UndeclaredPorts = "Drop"
	UndeclaredReset UndeclaredPorts = "Reset"
	UndeclaredAllow UndeclaredPorts = "Allow"
)

// PoolScope says from where the addresses of a pool are reached.
type PoolScope string

const (
	ScopeExternal PoolScope = "External"
	ScopeInternal PoolScope = "Internal"
)

// Quota limits how many addresses of a pool one tenant may hold. Lowering it takes nothing away.
type Quota struct {
	// PerNamespace limits the addresses of one namespace, each counted once, including FloatingIPs.
	PerNamespace *FamilyCount `json:"perNamespace,omitempty"`
}

// FamilyCount is a number of addresses of each family; a family left out has no limit.
type FamilyCount struct {
	// IPv4 addresses at most.
	IPv4 *Count `json:"ipv4,omitempty"`
	// IPv6 addresses at most.
	IPv6 *Count `json:"ipv6,omitempty"`
}

// Sharing says who may share an address.
type Sharing struct {
	// Scope Namespace lets Services of one namespace share an address, Cluster those of any.
	// +kubebuilder:validation:Enum=Namespace;Cluster
	// +kubebuilder:default=Namespace
	Scope SharingScope `json:"scope,omitempty"`
	// MaxServices that may share one address; 0 means no limit.
	MaxServices Count `json:"maxServices,omitempty"`
}

// SharingScope is how far an address is shared.
type SharingScope string

const (
	ShareNamespace SharingScope = "Namespace"
	ShareCluster   SharingScope = "Cluster"
)

// ServiceAllocation restricts a pool to some namespaces and Services: if both are given, both must allow a Service. A selector
// that matches nothing allows nothing.
type ServiceAllocation struct {
	// Priority among the pools that may serve a Service: the lowest number is tried first, 0 is last.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Priority int `json:"priority,omitempty"`

	// Namespaces by name.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	Namespaces []string `json:"namespaces,omitempty"`

	// NamespaceSelectors by label; a namespace that matches one of them is allowed.
	NamespaceSelectors LabelSelectors `json:"namespaceSelectors,omitempty"`

	// ServiceSelectors by the Service's labels; a Service that matches one of them is allowed.
	ServiceSelectors LabelSelectors `json:"serviceSelectors,omitempty"`
}

// IPAddressPoolStatus is what Holdfast reports about a pool.
type IPAddressPoolStatus struct {
	Status `json:",inline"`

	// AssignedIPv4 counts the IPv4 addresses held by Services.
	// +optional
	AssignedIPv4 AddressCount `json:"assignedIPv4"`
	// AssignedIPv6 counts the IPv6 addresses held by Services.
	// +optional
	AssignedIPv6 AddressCount `json:"assignedIPv6"`
	// AvailableIPv4 counts the IPv4 addresses that can still be assigned.
	// +optional
	AvailableIPv4 AddressCount `json:"availableIPv4"`
	// AvailableIPv6 counts the IPv6 addresses that can still be assigned, at most 2^62.
	// +optional
	AvailableIPv6 AddressCount `json:"availableIPv6"`
	// QuarantinedIPv4 counts the free IPv4 addresses that wait for reuseDelay.
	QuarantinedIPv4 AddressCount `json:"quarantinedIPv4,omitempty"`
	// QuarantinedIPv6 counts the free IPv6 addresses that wait for reuseDelay.
	QuarantinedIPv6 AddressCount `json:"quarantinedIPv6,omitempty"`

	// Guarded are the ranges of the pool in which the controller has looked for addresses in spec.externalIPs of Services. The filter closes
	// no address elsewhere.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=96
	// +listType=atomic
	Guarded []string `json:"guarded,omitempty"`
	// ExternalIPs are the addresses that a Service had in spec.externalIPs before a pool covered them. While it has them, the pool gives
	// them to no Service, and the filter leaves them alone.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=address
	// +listMapKey=service
	ExternalIPs []ExternalAddress `json:"externalIPs,omitempty"`

	// Retained addresses are still held although they were removed from the pool.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=address
	Retained []RetainedAddress `json:"retained,omitempty"`
	// RetainedCount counts all retained addresses, including those for which the list has no room.
	RetainedCount AddressCount `json:"retainedCount,omitempty"`
}

// ExternalAddress is an address in spec.externalIPs of a Service.
type ExternalAddress struct {
	// Address of the pool.
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address"`
	// Service that has it, as NAMESPACE/NAME.
	// +kubebuilder:validation:MaxLength=317
	Service string `json:"service"`
}

// RetainedAddress is an address that is still held although it was removed from its pool.
type RetainedAddress struct {
	// Address that is still held.
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address"`
	// Service or FloatingIP that holds it, as NAMESPACE/NAME.
	// +kubebuilder:validation:MaxLength=317
	Service string `json:"service"`
	// Since when it is no longer in the pool.
	Since Time `json:"since"`
}

// +kubebuilder:object:root=true

type IPAddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IPAddressPool `json:"items"`
}
