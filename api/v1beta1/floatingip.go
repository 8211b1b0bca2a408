package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// FloatingIP is an address, or one of each family, that a project owns with or without a Service. A Service of the same
// namespace claims it by the annotation holdfast.dev/floating-ip, by requesting its address, or by its name in
// spec.serviceName.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=fip,categories=holdfast
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.status.addresses`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Service",type=string,JSONPath=`.status.boundTo.name`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.status.boundSince`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`,priority=1
// +kubebuilder:printcolumn:name="Reclaim",type=string,JSONPath=`.spec.reclaimPolicy`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type FloatingIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:default={}
	Spec   FloatingIPSpec   `json:"spec,omitempty"`
	Status FloatingIPStatus `json:"status,omitempty"`
}

// FloatingIPSpec is what the project requests.
//
// +kubebuilder:validation:XValidation:rule="!has(self.addresses) || !has(self.ipFamilies) || self.addresses.all(a, isIP(a) && self.ipFamilies.exists(f, f == (ip(a).family() == 4 ? 'IPv4' : 'IPv6')))",message="each of addresses must be of one of ipFamilies: change one of the two"
type FloatingIPSpec struct {
	// Pool of the addresses; by default any pool that serves the namespace.
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool,omitempty"`

	// IPFamilies requested; by default the families of spec.addresses, or else IPv4.
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Enum=IPv4;IPv6
	// +listType=set
	IPFamilies []string `json:"ipFamilies,omitempty"`

	// Addresses requested, at most one of each family. Holdfast records the addresses that it chose in the
	// annotation holdfast.dev/assigned, so that backups contain them.
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="each address must be an IPv4 or IPv6 address"
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || !self.all(a, isIP(a)) || ip(self[0]).family() != ip(self[1]).family()",message="two addresses must be of two families"
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty"`

	// ReclaimPolicy Retain keeps the FloatingIP when its Service is deleted; Delete deletes it too. A FloatingIP is always
	// deleted with its namespace.
	// +kubebuilder:validation:Enum=Retain;Delete
	// +kubebuilder:default=Retain
	ReclaimPolicy ReclaimPolicy `json:"reclaimPolicy,omitempty"`

	// ServiceName binds the FloatingIP to this Service of its namespace and no other, as long as the Service exists.
	// +kubebuilder:validation:MaxLength=63
	ServiceName string `json:"serviceName,omitempty"`
}

// ReclaimPolicy determines what happens to a FloatingIP when its Service is deleted.
type ReclaimPolicy string

// The policies.
const (
	ReclaimRetain ReclaimPolicy = "Retain"
	ReclaimDelete ReclaimPolicy = "Delete"
)

// FloatingIPPhase is the progress of a FloatingIP.
type FloatingIPPhase string

const (
	// FloatingIPPending means that some addresses are not assigned yet.
	FloatingIPPending FloatingIPPhase = "Pending"
	// FloatingIPAvailable means that all addresses are assigned and no Service uses them.
	FloatingIPAvailable FloatingIPPhase = "Available"
	// FloatingIPBound means that a Service uses the FloatingIP.
	FloatingIPBound FloatingIPPhase = "Bound"
)

// FloatingIPStatus reports the state of a FloatingIP.
type FloatingIPStatus struct {
	Status `json:",inline"`

	// Addresses assigned to the FloatingIP.
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty"`
	// Phase is Pending, Available or Bound.
	// +kubebuilder:validation:Enum=Pending;Available;Bound
	Phase FloatingIPPhase `json:"phase,omitempty"`
	// BoundTo is the Service that uses the FloatingIP.
	BoundTo *Holder `json:"boundTo,omitempty"`
	// BoundSince is the time at which that Service began to use it.
	BoundSince *Time `json:"boundSince,omitempty"`
	// RecentHolders are the Services that used it before, latest first.
	// +kubebuilder:validation:MaxItems=3
	// +listType=atomic
	RecentHolders []Holder `json:"recentHolders,omitempty"`
}

// Holder is a Service of the FloatingIP's namespace.
type Holder struct {
	// Name of the Service.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// UID of the Service: another Service of the same name is another holder.
	// +kubebuilder:validation:MaxLength=128
	UID string `json:"uid,omitempty"`
	// Until is the time at which the Service released the FloatingIP.
	Until *Time `json:"until,omitempty"`
}

// +kubebuilder:object:root=true

// FloatingIPList is what the API server lists.
type FloatingIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FloatingIP `json:"items"`
}
