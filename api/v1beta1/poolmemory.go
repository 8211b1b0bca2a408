package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PoolMemory is what a pool remembers of addresses that were given back. It has the name of its pool and is deleted
// with it. The controller writes it and nobody else reads it: a pool itself is sent to every node when it changes.
// Users may read it. A pool whose PoolMemory is deleted forgets.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=poolmem,categories=holdfast
// +kubebuilder:printcolumn:name="Latest",type=string,JSONPath=`.status.released[0].address`
// +kubebuilder:printcolumn:name="Released",type=date,JSONPath=`.status.released[0].time`
// +kubebuilder:printcolumn:name="By",type=string,JSONPath=`.status.released[0].service`
// +kubebuilder:printcolumn:name="Forgotten",type=integer,JSONPath=`.status.forgotten`
type PoolMemory struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status PoolMemoryStatus `json:"status,omitempty"`
}

// PoolMemoryStatus is written before a holder loses its address.
type PoolMemoryStatus struct {
	// Released addresses with their last holders, latest first. An address that is held again is left out.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=address
	Released []ReleasedAddress `json:"released,omitempty"`
	// Forgotten counts releases for which the list had no room, since the creation of the pool.
	Forgotten AddressCount `json:"forgotten,omitempty"`
}

// ReleasedAddress is an address that was released.
type ReleasedAddress struct {
	// Address that was released.
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address"`
	// Time of the release.
	Time Time `json:"time"`
	// Service or FloatingIP that held it, as NAMESPACE/NAME.
	// +kubebuilder:validation:MaxLength=317
	Service string `json:"service"`
	// UID of the Service or FloatingIP.
	// +kubebuilder:validation:MaxLength=128
	UID string `json:"uid,omitempty"`
}

// +kubebuilder:object:root=true

type PoolMemoryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PoolMemory `json:"items"`
}
