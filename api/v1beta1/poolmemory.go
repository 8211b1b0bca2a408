package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PoolMemory records the addresses of a pool that were released. It has the name of its pool and is deleted with it.
// Only the controller reads and writes it; users may read it. The record is not part of the pool's status because every
// change of a pool is sent to every node. Deleting a PoolMemory deletes the record.
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

// PoolMemoryStatus is the record. It is written before a holder loses its address.
type PoolMemoryStatus struct {
	// Released are the released addresses with their last holders, latest first. An address that is held again is not
	// listed.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=address
	Released []ReleasedAddress `json:"released,omitempty"`
	// Forgotten counts the releases since the creation of the pool that the list had no room for.
	Forgotten AddressCount `json:"forgotten,omitempty"`
}

// ReleasedAddress is a released address with its last holder.
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

// PoolMemoryList is what the API server lists.
type PoolMemoryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PoolMemory `json:"items"`
}
