package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConditionAddressesFree on a pool is False while foreign machines have or claim some of its addresses. Its message
// lists them. The controller writes it, and removes it once no speaker reports such a machine.
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

// CEL cannot order addresses. The rule on reversed ranges therefore compares the two ends as text: f (from) and t (to)
// by their first different numbers, x and y. Both numbers begin at index n, after the separator s. After a "::" only
// the last numbers are compared, since the positions of others may differ. Some reversed ranges pass the rule, such as
// 2001:db8::1-2001:db8:0::; the daemons report them.

// IPAddressPoolSpec configures a pool.
type IPAddressPoolSpec struct {
	// Addresses of the pool: each item is a prefix (192.0.2.0/26), an inclusive range (192.0.2.10-192.0.2.20) or a single
	// address. IPv4 and IPv6 may be mixed. Pools must not overlap: an address in two pools belongs to the older pool.
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

	// AvoidBuggyIPs excludes IPv4 addresses that end in .0 or .255.
	// +kubebuilder:default=false
	AvoidBuggyIPs bool `json:"avoidBuggyIPs,omitempty"`

	// ServiceAllocation restricts which Services the pool serves.
	ServiceAllocation *ServiceAllocation `json:"serviceAllocation,omitempty"`

	// Classes that the pool serves. A pool with classes serves only Services that name one of them, and Services that
	// request the pool or one of its addresses. Classes are unrelated to spec.loadBalancerClass.
	Classes Words `json:"classes,omitempty"`

	// Scope External is for Services that are reached from outside, Internal for Services that request to be internal.
	// Neither kind of Service ever gets an address of the other scope.
	// +kubebuilder:validation:Enum=External;Internal
	// +kubebuilder:default=External
	Scope PoolScope `json:"scope,omitempty"`

	// Tags by which Services may choose pools.
	Tags Words `json:"tags,omitempty"`

	// Aliases are other names or ids by which Services and FloatingIPs may request the pool: a former name, or the id of
	// an OpenStack network or subnet. Several pools may have the same alias.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	Aliases []string `json:"aliases,omitempty"`

	// Quota limits how many addresses of the pool one tenant may hold.
	Quota *Quota `json:"quota,omitempty"`

	// Sharing determines which Services may share an address of the pool.
	Sharing *Sharing `json:"sharing,omitempty"`

	// ReuseDelay is the time for which a released address is reserved for its last holder, as a duration such as 10m.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="reuseDelay must not be negative: write a duration as 10m or 24h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	ReuseDelay *metav1.Duration `json:"reuseDelay,omitempty"`

	// SourceRanges are the sources that may reach the addresses of the pool: prefixes or addresses of both families. A
	// family without an entry is denied. The source ranges of a Service can only narrow these ranges. Without the field
	// only the Service's own source ranges apply.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(s, isCIDR(s.trim()) || isIP(s.trim()))",message="each source range must be a prefix (192.0.2.0/24) or a single address"
	// +listType=atomic
	SourceRanges []string `json:"sourceRanges,omitempty"`

	// UndeclaredPorts determines what happens to packets to a port that no Service declares, whatever the source ranges:
	// no answer (Drop), the answer of a host that does not listen there (Reset), or the answer of the node and kube-proxy
	// (Allow). By default the chart's speaker.filter.undeclaredPorts applies.
	// +kubebuilder:validation:Enum=Drop;Reset;Allow
	UndeclaredPorts UndeclaredPorts `json:"undeclaredPorts,omitempty"`
}

// UndeclaredPorts determines what happens to packets to ports that no Service declares.
type UndeclaredPorts string

// What happens to such packets.
const (
	UndeclaredDrop  UndeclaredPorts = "Drop"
	UndeclaredReset UndeclaredPorts = "Reset"
	UndeclaredAllow UndeclaredPorts = "Allow"
)

// PoolScope tells from where the addresses of a pool are reached.
type PoolScope string

// The scopes of pools.
const (
	ScopeExternal PoolScope = "External"
	ScopeInternal PoolScope = "Internal"
)

// Quota limits how many addresses of a pool one tenant may hold. Lowering it releases no addresses.
type Quota struct {
	// PerNamespace limits the addresses of each namespace, including FloatingIPs. A shared address counts once.
	PerNamespace *FamilyCount `json:"perNamespace,omitempty"`
}

// FamilyCount limits the addresses of each family. A family without a value has no limit.
type FamilyCount struct {
	// IPv4 is the maximum number of IPv4 addresses.
	IPv4 *Count `json:"ipv4,omitempty"`
	// IPv6 is the maximum number of IPv6 addresses.
	IPv6 *Count `json:"ipv6,omitempty"`
}

// Sharing determines which Services may share an address.
type Sharing struct {
	// Scope Namespace lets Services of one namespace share an address, Cluster Services of any namespaces.
	// +kubebuilder:validation:Enum=Namespace;Cluster
	// +kubebuilder:default=Namespace
	Scope SharingScope `json:"scope,omitempty"`
	// MaxServices is the number of Services that may share one address; 0 means no limit.
	MaxServices Count `json:"maxServices,omitempty"`
}

// SharingScope is the set of Services that may share an address.
type SharingScope string

// The scopes of sharing.
const (
	ShareNamespace SharingScope = "Namespace"
	ShareCluster   SharingScope = "Cluster"
)

// ServiceAllocation restricts a pool to some namespaces and Services. If both are given, both must allow a Service. A
// selector that matches nothing allows nothing.
type ServiceAllocation struct {
	// Priority among the pools that may serve a Service: the lowest number is tried first, and 0 is tried last.
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

// IPAddressPoolStatus reports the usage of a pool.
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
	// QuarantinedIPv4 counts the free IPv4 addresses whose reuseDelay has not passed.
	QuarantinedIPv4 AddressCount `json:"quarantinedIPv4,omitempty"`
	// QuarantinedIPv6 counts the free IPv6 addresses whose reuseDelay has not passed.
	QuarantinedIPv6 AddressCount `json:"quarantinedIPv6,omitempty"`

	// Guarded are the ranges of the pool for which the controller has searched spec.externalIPs of all Services. The
	// filter closes only addresses in these ranges.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=96
	// +listType=atomic
	Guarded []string `json:"guarded,omitempty"`
	// ExternalIPs are the addresses that a Service had in spec.externalIPs before a pool covered them. As long as it has
	// them, the pool assigns them to no Service, and the filter does not apply to them.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=address
	// +listMapKey=service
	ExternalIPs []ExternalAddress `json:"externalIPs,omitempty"`

	// Retained are addresses that are still held although they were removed from the pool.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=address
	Retained []RetainedAddress `json:"retained,omitempty"`
	// RetainedCount counts all retained addresses, including addresses that the list has no room for.
	RetainedCount AddressCount `json:"retainedCount,omitempty"`
}

// ExternalAddress is an address in spec.externalIPs of a Service.
type ExternalAddress struct {
	// Address of the pool.
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address"`
	// Service that has the address, as NAMESPACE/NAME.
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
	// Since is the time at which the address was removed from the pool.
	Since Time `json:"since"`
}

// +kubebuilder:object:root=true

// IPAddressPoolList is what the API server lists.
type IPAddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IPAddressPool `json:"items"`
}
