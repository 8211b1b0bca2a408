package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConditionEndpointsWithdrawn is written by the controller on the SpeakerState of a node that a majority of
// the speakers cannot reach: True while the pods on it that back Services of ours are marked not ready.
const ConditionEndpointsWithdrawn = "EndpointsWithdrawn"

// SpeakerState is what the speaker of one node sees and does. It bears the node's name and goes with the
// node. That node's speaker writes it, the controller the conditions; users only read it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=spks,categories=holdfast
// +kubebuilder:printcolumn:name="Alive",type=integer,JSONPath=`.status.members.alive`
// +kubebuilder:printcolumn:name="Expected",type=integer,JSONPath=`.status.members.expected`
// +kubebuilder:printcolumn:name="IPv4",type=integer,JSONPath=`.status.owned.ipv4`
// +kubebuilder:printcolumn:name="IPv6",type=integer,JSONPath=`.status.owned.ipv6`
// +kubebuilder:printcolumn:name="Conflicts",type=integer,JSONPath=`.status.conflictCount`
// +kubebuilder:printcolumn:name="Unreachable",type=string,JSONPath=`.status.unreachable[*].node`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SpeakerState struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Status SpeakerStateStatus `json:"status,omitempty"`
}

// SpeakerStateStatus is written when something of it changes: at once when another node falls silent or is
// heard again, else some time apart, for there is one writer on every node. Nothing of the speaker's is left
// out of the JSON when it is empty: a merge patch must be able to say so.
type SpeakerStateStatus struct {
	// Observed is when the speaker last wrote, by its own clock.
	// +optional
	Observed *metav1.MicroTime `json:"observed"`

	// Members of the speakers' membership, as this one sees it.
	// +optional
	Members MemberCounts `json:"members"`

	// Unreachable nodes are silent altogether: neither the speaker nor the kernel answers. Each speaker finds out
	// for itself. The controller acts when a majority says so of a node.
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Unreachable []SilentNode `json:"unreachable"`

	// Silent nodes have answered, but their speakers are not heard: one is down for a while, hangs, or its port
	// is blocked.
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Silent []SilentNode `json:"silent"`

	// Links that are in use for layer 2, by name.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Links []string `json:"links"`

	// Owned counts the addresses that this node answers ARP and NDP for.
	// +optional
	Owned AddressCounts `json:"owned"`

	// Conflicts are addresses that somebody else on the link claims, the first of them.
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Conflicts []AddressConflict `json:"conflicts"`

	// ConflictCount counts all conflicts.
	// +optional
	ConflictCount int32 `json:"conflictCount"`

	// Sessions of BGP.
	// +listType=map
	// +listMapKey=peer
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Sessions []SessionState `json:"sessions"`

	// Conditions of the node, written by the controller.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MemberCounts counts speakers.
type MemberCounts struct {
	// Expected speakers: those that have a pod.
	// +optional
	Expected int32 `json:"expected"`
	// Alive speakers, this one included.
	// +optional
	Alive int32 `json:"alive"`
}

// AddressCounts counts addresses by family.
type AddressCounts struct {
	// +optional
	IPv4 int32 `json:"ipv4"`
	// +optional
	IPv6 int32 `json:"ipv6"`
}

// SilentNode is a node whose speaker is not heard.
type SilentNode struct {
	// Node by name.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// Since is when it was last heard, by the clock of who says so.
	Since metav1.MicroTime `json:"since"`
}

// AddressConflict is an address of ours that somebody else claims.
type AddressConflict struct {
	// +kubebuilder:validation:MaxLength=64
	Address string `json:"address"`
	// MAC of who claims it.
	// +kubebuilder:validation:MaxLength=64
	MAC string `json:"mac"`
}

// SessionState is the state of one BGP session of the node.
type SessionState struct {
	// Peer is the name of the BGPPeer.
	// +kubebuilder:validation:MaxLength=253
	Peer string `json:"peer"`
	// State is established or down: what a session that is down goes through would be a change each second.
	// +kubebuilder:validation:Enum=established;down
	State string `json:"state"`
}

// SpeakerStateList is a list of the speakers' states.
//
// +kubebuilder:object:root=true
type SpeakerStateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SpeakerState `json:"items"`
}
