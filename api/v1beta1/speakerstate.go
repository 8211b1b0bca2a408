package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConditionEndpointsWithdrawn is True on the SpeakerState of a node that a majority of the speakers cannot reach, while
// its pods behind our Services are marked not ready. The controller writes it.
const ConditionEndpointsWithdrawn = "EndpointsWithdrawn"

// SpeakerState reports what the speaker of one node observes and does. It has the node's name and is deleted with the
// node. The node's speaker writes it, except for the conditions, which the controller writes. Users only read it.
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

// SpeakerStateStatus is written when it changes: at once when another node falls silent or is heard again, otherwise at
// intervals, because every node writes one. The JSON includes the speaker's fields even if they are empty, because a
// merge patch could not clear them otherwise.
type SpeakerStateStatus struct {
	// Observed is the time of the speaker's last write, by its own clock.
	// +optional
	Observed *MicroTime `json:"observed"`

	// Version of the speaker.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Version string `json:"version"`

	// KeysVersion is the resource version of the members' Secret that the speaker has read. The speaker accepts all keys
	// of that version, and sends with its key in use. The controller rotates the key when all speakers have read it.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	KeysVersion string `json:"keysVersion"`

	// Members counts the speakers, as this speaker sees them.
	// +optional
	Members MemberCounts `json:"members"`

	// Unreachable are the nodes on which neither the speaker nor the kernel answers. Each speaker determines this for
	// itself. The controller acts when a majority of the speakers lists a node.
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Unreachable []SilentNode `json:"unreachable"`

	// Silent are the nodes that answer, but whose speakers are not heard: the speaker is down, hangs, or its port is
	// blocked.
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Silent []SilentNode `json:"silent"`

	// LinkFails reports whether this node's link seems to fail: it misses speakers, and foreign machines fell silent too.
	// +optional
	LinkFails bool `json:"linkFails"`

	// Links are the names of the links in use for layer 2.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=64
	// +optional
	Links []string `json:"links"`

	// Subnets of these links, as prefixes. The first and the last address of a subnet are assigned to no Service.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +optional
	Subnets []string `json:"subnets"`

	// Gateways are the default gateways on these links. They are assigned to no Service.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +optional
	Gateways []string `json:"gateways"`

	// Owned counts the addresses for which this node answers ARP and NDP.
	// +optional
	Owned AddressCounts `json:"owned"`

	// Conflicts are the first addresses of pools that a foreign machine on the link claims or has.
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Conflicts []AddressConflict `json:"conflicts"`

	// ConflictCount counts all conflicts, including conflicts that the list has no room for.
	// +optional
	ConflictCount Count `json:"conflictCount"`

	// Sessions are the BGP sessions of the node.
	// +listType=map
	// +listMapKey=peer
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Sessions []SessionState `json:"sessions"`

	// SessionsEstablished is the number of established BGP sessions and of all BGP sessions, as "3/4"; empty without
	// sessions.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	SessionsEstablished string `json:"sessionsEstablished"`

	// Proxied are the first Services by name, as NAMESPACE/NAME, that proxies on this node serve on all of their ports.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=320
	// +optional
	Proxied []string `json:"proxied"`

	// ProxyFaults are the first reasons, by name of the Service, why proxies on this node do not serve Services as
	// requested.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=512
	// +optional
	ProxyFaults []ProxyFault `json:"proxyFaults"`

	// EgressClosed are the first Services, by namespace and name, of whose pods the node rejects outgoing connections.
	// The condition holdfast.dev/Egress of a Service tells this of all nodes.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	EgressClosed []ClosedEgress `json:"egressClosed"`

	// EgressClosedCount counts all such Services, including Services that the list has no room for.
	// +optional
	EgressClosedCount Count `json:"egressClosedCount"`

	// Problems are the first problems of the node that an administrator must fix.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Problems []NodeProblem `json:"problems"`

	// Status has the conditions of the node. The controller writes them.
	Status `json:",inline"`
}

// ProxyFault is the reason why a proxy does not serve a Service as requested.
type ProxyFault struct {
	// Service as NAMESPACE/NAME.
	// +kubebuilder:validation:MaxLength=320
	Service string `json:"service"`

	// Reason is one CamelCase word.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
}

// ClosedEgress tells that a node rejects outgoing connections of pods of a Service.
type ClosedEgress struct {
	// Service as NAMESPACE/NAME.
	// +kubebuilder:validation:MaxLength=320
	Service string `json:"service"`

	// PodAddresses counts the addresses of these pods.
	PodAddresses Count `json:"podAddresses"`

	// Message is the reason for the first of the addresses.
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message"`
}

// MemberCounts counts speakers.
type MemberCounts struct {
	// Expected counts the speakers that have a pod.
	// +optional
	Expected Count `json:"expected"`
	// Alive counts the speakers that are alive, including this one.
	// +optional
	Alive Count `json:"alive"`
}

// AddressCounts counts addresses by family.
type AddressCounts struct {
	// IPv4 counts IPv4 addresses.
	// +optional
	IPv4 Count `json:"ipv4"`
	// IPv6 counts IPv6 addresses.
	// +optional
	IPv6 Count `json:"ipv6"`
}

// SilentNode is a node whose speaker is not heard.
type SilentNode struct {
	// Node is the name of the node.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// Since is the time at which it was last heard, by the clock of the reporting node.
	Since MicroTime `json:"since"`
}

// AddressConflict is an address of a pool that a foreign machine claims or has.
type AddressConflict struct {
	// Address in conflict.
	// +kubebuilder:validation:MaxLength=64
	Address string `json:"address"`
	// MAC of the machine that claims it.
	// +kubebuilder:validation:MaxLength=64
	MAC string `json:"mac"`
}

// The states of a BGP session.
const (
	SessionStateEstablished = "established"
	SessionStateDown        = "down"
)

// SessionState is the state of one BGP session of the node. It has no field that changes with time alone, such as an
// age: each change is a write.
type SessionState struct {
	// Peer is the name of the BGPPeer.
	// +kubebuilder:validation:MaxLength=253
	Peer string `json:"peer"`
	// State is established or down. The states of RFC 4271 in between would cause a write each second.
	// +kubebuilder:validation:Enum=established;down
	State string `json:"state"`
	// Awaited reports whether the previous speaker had the session and this one has not established it yet. Meanwhile
	// the speaker's pod is not ready.
	Awaited bool `json:"awaited,omitempty"`
	// Since is the time at which the session was established or was lost; empty if it was never established.
	Since *Time `json:"since,omitempty"`
	// LastError is the reason why the session is down; empty during the first attempt.
	// +kubebuilder:validation:MaxLength=512
	LastError string `json:"lastError,omitempty"`
	// Withheld names the routes that an established session should carry but does not.
	// +kubebuilder:validation:MaxLength=512
	Withheld string `json:"withheld,omitempty"`
	// AdvertisedRoutes counts the routes that are advertised to the peer. It may lag by some seconds.
	AdvertisedRoutes Count `json:"advertisedRoutes,omitempty"`
	// Capabilities that both ends of an established session have.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	Capabilities []string `json:"capabilities,omitempty"`
	// HoldSeconds is the hold time of an established session in seconds: the lower of the two proposed hold times.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	HoldSeconds int32 `json:"holdSeconds,omitempty"`
	// KeepaliveSeconds is the time in seconds between the KEEPALIVE messages that the node sends.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	KeepaliveSeconds int32 `json:"keepaliveSeconds,omitempty"`
	// BFD is the state of the peer's BFD session; empty without one.
	// +kubebuilder:validation:Enum=admin-down;down;up
	BFD string `json:"bfd,omitempty"`
}

// NodeProblem is a problem of a node that an administrator must fix.
type NodeProblem struct {
	// Reason is one CamelCase word, as in the speaker's log and its metric holdfast_problems.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
	// Message tells what is wrong and how to fix it.
	// +kubebuilder:validation:MaxLength=8192
	Message string `json:"message"`
}

// +kubebuilder:object:root=true

// SpeakerStateList is what the API server lists.
type SpeakerStateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SpeakerState `json:"items"`
}
