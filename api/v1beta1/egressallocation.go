package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EgressAllocation records which ports of an address the pods of each node send from. Its name is the address: an IPv6
// address in full, with hyphens for the colons. Only the controller writes it, before any node uses the ports, and
// deletes it with the last slice. It is not part of a Service, because Services can share an address, and the record
// outlives them. Deleting an EgressAllocation breaks the connections that use its ports.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=egressalloc,categories=holdfast
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.slices[*].node`
// +kubebuilder:printcolumn:name="Ports from",type=string,JSONPath=`.status.slices[*].first`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[0-9.]+$') ? ip.isCanonical(self.metadata.name) : self.metadata.name.matches('^([0-9a-f]{4}-){7}[0-9a-f]{4}$') && isIP(self.metadata.name.replace('-', ':'))",message="the name must be an IPv4 address, or an IPv6 address in full with hyphens for the colons: 2001-0db8-0000-0000-0000-0000-0000-0001"
type EgressAllocation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status EgressAllocationStatus `json:"status,omitempty"`
}

// EgressAllocationStatus is the record.
type EgressAllocationStatus struct {
	// Slices of the ports of the address, each for the pods of one namespace on one node.
	// +kubebuilder:validation:MaxItems=15
	// +listType=map
	// +listMapKey=first
	Slices []EgressSlice `json:"slices,omitempty"`
}

// EgressSlice is 4096 ports. Pods on its node open their connections from them.
type EgressSlice struct {
	// First port, a multiple of 4096.
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=61440
	// +kubebuilder:validation:MultipleOf=4096
	First int32 `json:"first"`
	// Node of the pods.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// Namespace of the pods. No other namespace uses these ports before they have rested.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Released is when the last of the pods was gone; absent while there are some. Five minutes later the ports are
	// free.
	Released *Time `json:"released,omitempty"`
}

// +kubebuilder:object:root=true

// EgressAllocationList is what the API server lists.
type EgressAllocationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EgressAllocation `json:"items"`
}
