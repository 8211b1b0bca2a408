package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConditionEndpointsWithdrawn is written by the controller on the SpeakerState of a node that a majority of
// the speakers cannot reach: True while its pods behind our Services are marked not ready.
const ConditionEndpointsWithdrawn = "EndpointsWithdrawn"

// SpeakerState is what the speaker of one node sees and does. It has the node's name and is deleted with the
// node. That node's speaker writes it, and the controller its conditions; users only read it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=spks,categories=holdfast
// +kubebuilder:printcolumn:name="Alive",type=integer,JSONPath=`.status.members.alive`
// +kubebuilder:printcolumn:name="Expected",type=integer,JSONPath=`.status.members.expected`
// +kubebuilder:printcolumn:name="IPv4",type=integer,JSONPath=`.status.owned.ipv4`
// +kubebuilder:printcolumn:name="IPv6",type=integer,JSONPath=`.status.owned.ipv6`
// +kubebuilder:printcolumn:name="Conflicts",type=integer,JSONPath=`.status.conflictCount`
// +kubebuilder:printcolumn:name="Sessions",type=string,JSONPath=`.status.sessionsEstablished`
// +kubebuilder:printcolumn:name="Problems",type=string,JSONPath=`.status.problems[*].reason`
// +kubebuilder:printcolumn:name="Unreachable",type=string,JSONPath=`.status.unreachable[*].node`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SpeakerState struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status SpeakerStateStatus `json:"status,omitempty"`
}

// SpeakerStateStatus is written when it changes: at once when another node falls silent or is heard again,
// otherwise at intervals, because every node writes one. The JSON includes the speaker's fields even if they
// are empty, because a merge patch could not clear them otherwise.
type SpeakerStateStatus struct {
	// Observed is when the speaker last wrote, by its own clock.
	// +optional
	Observed *MicroTime `json:"observed"`

	// Version of the speaker.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Version string `json:"version"`

	// Members of the speakers' membership, as this speaker sees it.
	// +optional
	Members MemberCounts `json:"members"`

	// Unreachable nodes are silent: neither the speaker nor the kernel answers. Each speaker finds that out for
	// itself. The controller acts when a majority of speakers lists a node.
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Unreachable []SilentNode `json:"unreachable"`

	// Silent nodes answer, but their speakers are not heard: a speaker is down, hangs, or its port is blocked.
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Silent []SilentNode `json:"silent"`

	// LinkFails: this node misses speakers, and machines that are no speakers fell silent too.
	// +optional
	LinkFails bool `json:"linkFails"`

	// Links in use for layer 2, by name.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=64
	// +optional
	Links []string `json:"links"`

	// Subnets of these links, as prefixes. Pools give no Service the first and the last address of a subnet.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +optional
	Subnets []string `json:"subnets"`

	// Gateways are the default gateways on these links. Pools give them to no Service.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +optional
	Gateways []string `json:"gateways"`

	// Owned counts the addresses for which this node answers ARP and NDP.
	// +optional
	Owned AddressCounts `json:"owned"`

	// Conflicts are addresses of pools that a foreign machine on the link claims or has, the first of them.
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Conflicts []AddressConflict `json:"conflicts"`

	// ConflictCount counts all conflicts.
	// +optional
	ConflictCount Count `json:"conflictCount"`

	// Sessions of BGP.
	// +listType=map
	// +listMapKey=peer
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Sessions []SessionState `json:"sessions"`

	// SessionsEstablished is how many of the BGP sessions are established, as "3/4"; empty without sessions.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	SessionsEstablished string `json:"sessionsEstablished"`

	// Proxied are the Services, as NAMESPACE/NAME, that proxies on this node serve on all of their ports: the first by name.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=320
	// +optional
	Proxied []string `json:"proxied"`

	// ProxyFaults are what keeps the proxies on this node from serving Services as they ask, the first of them by name.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=512
	// +optional
	ProxyFaults []ProxyFault `json:"proxyFaults"`

	// Problems of the node that its user must repair, the first of them.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Problems []NodeProblem `json:"problems"`

	// Status has conditions of the node, which the controller writes.
	Status `json:",inline"`
}

// ProxyFault is what keeps a proxy from serving a Service as it asks.
type ProxyFault struct {
	// Service as NAMESPACE/NAME.
	// +kubebuilder:validation:MaxLength=320
	Service string `json:"service"`

	// Reason in one word.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
}

// MemberCounts counts speakers.
type MemberCounts struct {
	// Expected speakers: those with a pod.
	// +optional
	Expected Count `json:"expected"`
	// Alive speakers, including this one.
	// +optional
	Alive Count `json:"alive"`
}

// AddressCounts counts addresses by family.
type AddressCounts struct {
	// IPv4 addresses.
	// +optional
	IPv4 Count `json:"ipv4"`
	// IPv6 addresses.
	// +optional
	IPv6 Count `json:"ipv6"`
}

// SilentNode is a node whose speaker is not heard.
type SilentNode struct {
	// Node by name.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// Since is when it was last heard, by the clock of the reporting node.
	Since MicroTime `json:"since"`
}

// AddressConflict is an address of ours that a foreign machine claims.
type AddressConflict struct {
	// Address that both have.
	// +kubebuilder:validation:MaxLength=64
	Address string `json:"address"`
	// MAC of the machine that claims it.
	// +kubebuilder:validation:MaxLength=64
	MAC string `json:"mac"`
}

const (
	SessionStateEstablished = "established"
	SessionStateDown        = "down"
)

// SessionState is the state of one BGP session of the node. It has nothing that changes by itself.
type SessionState struct {
	// Peer is the name of the BGPPeer.
	// +kubebuilder:validation:MaxLength=253
	Peer string `json:"peer"`
	// State is established or down. The steps of a session that is down would cause a write each second.
	// +kubebuilder:validation:Enum=established;down
	State string `json:"state"`
	// Awaited: the speaker before this one had the session, and this one has not had it yet. Until then its pod is not ready.
	Awaited bool `json:"awaited,omitempty"`
	// Since is when the session came up, or went down after it was up; empty if it was never up.
	Since *Time `json:"since,omitempty"`
	// LastError says why the session is down; empty while the first attempt lasts.
	// +kubebuilder:validation:MaxLength=512
	LastError string `json:"lastError,omitempty"`
	// Withheld says which routes an established session does not carry, though it should.
	// +kubebuilder:validation:MaxLength=512
	Withheld string `json:"withheld,omitempty"`
	// AdvertisedRoutes counts the routes that the peer has of this node. It may be late by some seconds.
	AdvertisedRoutes Count `json:"advertisedRoutes,omitempty"`
	// Capabilities that both ends of an established session have.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	Capabilities []string `json:"capabilities,omitempty"`
	// HoldSeconds is the hold time of an established session: the lower one of what both ends proposed.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	HoldSeconds int32 `json:"holdSeconds,omitempty"`
	// KeepaliveSeconds is the time between the KEEPALIVE messages that the node sends.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	KeepaliveSeconds int32 `json:"keepaliveSeconds,omitempty"`
	// BFD is the state of the peer's BFD session; empty without one.
	// +kubebuilder:validation:Enum=admin-down;down;up
	BFD string `json:"bfd,omitempty"`
}

// NodeProblem is something about a node that its user must repair.
type NodeProblem struct {
	// Reason is one word, as in the speaker's log and its metric holdfast_problems.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
	// Message says what is wrong and what to do.
	// +kubebuilder:validation:MaxLength=8192
	Message string `json:"message"`
}

// +kubebuilder:object:root=true

type SpeakerStateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SpeakerState `json:"items"`
}
