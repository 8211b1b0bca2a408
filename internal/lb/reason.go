package lb

// A Reason is one CamelCase word that says why something is as it is. The same
// word stands in the condition, the Event, the log line, the metric label and the
// test.
type Reason string

// Reasons of an assignment (condition holdfast.dev/AddressAssigned).
const (
	// Assigned: the Service holds every address it asked for.
	Assigned Reason = "Assigned"
	// PartlyAssigned: a PreferDualStack Service holds one of two families.
	PartlyAssigned Reason = "PartlyAssigned"
	// NoPool: no pool exists, or none may serve this Service.
	NoPool Reason = "NoPool"
	// NoFamily: pools exist for the Service, none of the wanted family.
	NoFamily Reason = "NoFamily"
	// PoolExhausted: every pool that may serve the Service is full.
	PoolExhausted Reason = "PoolExhausted"
	// UnknownPool: the Service asks for a pool that does not exist.
	UnknownPool Reason = "UnknownPool"
	// PoolNotAllowed: the Service asks for a pool that may not serve it.
	PoolNotAllowed Reason = "PoolNotAllowed"
	// AddressInUse: the Service asks for an address that another one holds.
	AddressInUse Reason = "AddressInUse"
	// AddressNotInPool: the Service asks for an address outside every pool.
	AddressNotInPool Reason = "AddressNotInPool"
	// InvalidRequest: what the Service asks for cannot be read or contradicts itself.
	InvalidRequest Reason = "InvalidRequest"
	// NoClusterIP: a headless Service of type LoadBalancer cannot be served.
	NoClusterIP Reason = "NoClusterIP"
	// DualStackUnmet: RequireDualStack, but the Service has one family only.
	DualStackUnmet Reason = "DualStackUnmet"
	// AddressKept: the Service keeps an address that is not of the pool or kind it asks for now: until
	// holdfast.dev/pool can be met, or until it asks for an address by value or for holdfast.dev/renew.
	AddressKept Reason = "AddressKept"
	// UnknownClass: the Service names a class that no pool has.
	UnknownClass Reason = "UnknownClass"
	// UnknownNetwork: the Service names a network or subnet that no pool stands for.
	UnknownNetwork Reason = "UnknownNetwork"
	// UnknownLoadBalancer: the Service names a load balancer that nobody has.
	UnknownLoadBalancer Reason = "UnknownLoadBalancer"
	// PortClash: another Service on the address to share has the port.
	PortClash Reason = "PortClash"
	// NotShareable: the address may not be shared with those who hold it.
	NotShareable Reason = "NotShareable"
	// SharingLimit: as many Services share the address as may.
	SharingLimit Reason = "SharingLimit"
	// QuotaExceeded: the namespace holds as many addresses of the pool as it may.
	QuotaExceeded Reason = "QuotaExceeded"
	// Quarantined: the last free addresses of the pools wait for reuseDelay.
	Quarantined Reason = "Quarantined"
	// FloatingIPUnknown: the Service claims a FloatingIP that its namespace does not have.
	FloatingIPUnknown Reason = "FloatingIPUnknown"
	// FloatingIPPending: the FloatingIP claimed has no address yet.
	FloatingIPPending Reason = "FloatingIPPending"
	// FloatingIPInUse: the FloatingIP claimed is another Service's.
	FloatingIPInUse Reason = "FloatingIPInUse"
	// FloatingIPDeleting: the FloatingIP claimed is being deleted.
	FloatingIPDeleting Reason = "FloatingIPDeleting"
	// Available: the FloatingIP has its addresses and no Service.
	Available Reason = "Available"
	// Bound: a Service uses the FloatingIP.
	Bound Reason = "Bound"
	// Released: the Service gave its addresses back.
	Released Reason = "Released"
)

// Reasons of the condition holdfast.dev/AnnotationsHonoured.
const (
	// AnnotationIgnored: the Service bears annotations that do nothing here.
	AnnotationIgnored Reason = "AnnotationIgnored"
)

// Reasons of a filter (conditions holdfast.dev/Filtered and holdfast.dev/FilterEnforced).
const (
	// Filtered: every range and limit that the Service and its pools name is in force.
	Filtered Reason = "Filtered"
	// InvalidSourceRange: an entry of a list of sources cannot be read; the others are in force.
	InvalidSourceRange Reason = "InvalidSourceRange"
	// NoSourceAllowed: a list of sources holds nothing that can be read, and closes.
	NoSourceAllowed Reason = "NoSourceAllowed"
	// ConflictingSourceRanges: two lists of sources differ, and one of them is in force.
	ConflictingSourceRanges Reason = "ConflictingSourceRanges"
	// InvalidLimit: a limit, or a wish for a log, cannot be read and is not in force.
	InvalidLimit Reason = "InvalidLimit"
	// FilterDisabled: filtering is turned off, and what asks for it does nothing.
	FilterDisabled Reason = "FilterDisabled"
	// FilterNotEnforceable: something on the node may carry packets past its packet filter.
	FilterNotEnforceable Reason = "FilterNotEnforceable"
	// FilterNotInForce: the node cannot keep its packet filter, and does not announce what has ranges.
	FilterNotInForce Reason = "FilterNotInForce"
	// StrictARPMissing: kube-proxy in mode IPVS has the node answer ARP for every address on its own.
	StrictARPMissing Reason = "StrictARPMissing"
)

// OfFilter reports whether a Reason says something of what a Service asks of the filter.
func (r Reason) OfFilter() bool {
	switch r {
	case InvalidSourceRange, NoSourceAllowed, ConflictingSourceRanges, InvalidLimit, FilterDisabled:
		return true
	}
	return false
}

// Reasons of an announcement (conditions holdfast.dev/AnnouncedL2 and
// holdfast.dev/AnnouncedBGP).
const (
	// Announced: at least one node makes the network deliver the addresses.
	Announced Reason = "Announced"
	// NoAddress: nothing is assigned yet.
	NoAddress Reason = "NoAddress"
	// NoServingEndpoint: no endpoint can serve, so no node attracts traffic.
	NoServingEndpoint Reason = "NoServingEndpoint"
	// NoLocalEndpoint: externalTrafficPolicy Local, and this node has no serving endpoint.
	NoLocalEndpoint Reason = "NoLocalEndpoint"
	// NoAdvertisement: no advertisement selects the pool and the Service.
	NoAdvertisement Reason = "NoAdvertisement"
	// NoEligibleNode: advertisements exist, but no live node may announce.
	NoEligibleNode Reason = "NoEligibleNode"
	// NodeNotSelected: this node is in no advertisement's nodeSelectors.
	NodeNotSelected Reason = "NodeNotSelected"
	// NodeExcluded: label node.kubernetes.io/exclude-from-external-load-balancers.
	NodeExcluded Reason = "NodeExcluded"
	// NetworkUnavailable: the node's condition of this name is true.
	NetworkUnavailable Reason = "NetworkUnavailable"
	// NodeDraining: the node is being emptied, or its speaker about to stop, and another node announces.
	NodeDraining Reason = "NodeDraining"
	// AddressConflict: a machine that is not ours has the address.
	AddressConflict Reason = "AddressConflict"
	// AddressFree: no machine that is not ours claims an address of the pool any more.
	AddressFree Reason = "AddressFree"
	// NoLink: the node that is to announce has no link on which it can.
	NoLink Reason = "NoLink"
	// LinkSilent: the node hears nobody on a link on which it did, and whose carrier is up.
	LinkSilent Reason = "LinkSilent"
	// HeartbeatsBlocked: speakers answer by gossip whose heartbeats do not arrive.
	HeartbeatsBlocked Reason = "HeartbeatsBlocked"
	// SocketRefused: the node's packet sockets on a link cannot be opened, so that it answers nothing there.
	SocketRefused Reason = "SocketRefused"
	// KubeProxyNotReady: the node was started, and its kube-proxy has not served since.
	KubeProxyNotReady Reason = "KubeProxyNotReady"
	// Probing: the address is new, and it is being asked whether somebody has it already.
	Probing Reason = "Probing"
	// NotMember: the node's speaker is not alive as its peers see it.
	NotMember Reason = "NotMember"
	// CutOff: this node hears half of the speakers or fewer, and reaches no node with a serving endpoint.
	CutOff Reason = "CutOff"
	// NotOwner: another node announces the address.
	NotOwner Reason = "NotOwner"
	// NoPeer: no BGPPeer is usable on this node for the advertisement.
	NoPeer Reason = "NoPeer"
	// NoSession: peers are configured, none of their sessions is established.
	NoSession Reason = "NoSession"
	// ConflictingAdvertisements: two advertisements give one route different local preferences.
	ConflictingAdvertisements Reason = "ConflictingAdvertisements"
)

// Reasons of Events on a BGPPeer.
const (
	// SessionEstablished: a node's session with the peer came up.
	SessionEstablished Reason = "SessionEstablished"
	// SessionDown: a node's session with the peer went down or cannot come up.
	SessionDown Reason = "SessionDown"
)

// Reasons about nodes that are dead (Events on Nodes and Services, condition
// EndpointsWithdrawn of a SpeakerState).
const (
	// NodeUnreachable: most speakers cannot reach the node, so endpoints on it are withdrawn.
	NodeUnreachable Reason = "NodeUnreachable"
	// NodeReachable: the node lives after all, so what was withdrawn is restored.
	NodeReachable Reason = "NodeReachable"
	// NodeGivenUp: Kubernetes itself has given the node up, and its pods are Kubernetes' business.
	NodeGivenUp Reason = "NodeGivenUp"
	// TooManyUnreachable: more nodes than may fell silent at once, so their endpoints stay.
	TooManyUnreachable Reason = "TooManyUnreachable"
	// EndpointsWithdrawn: endpoints of the Service are on a node that is unreachable.
	EndpointsWithdrawn Reason = "EndpointsWithdrawn"
	// EndpointsRestored: endpoints of the Service that were withdrawn may serve again.
	EndpointsRestored Reason = "EndpointsRestored"
)

// Reasons of configuration objects (condition Valid).
const (
	// Valid: the whole object is in force.
	Valid Reason = "Valid"
	// InvalidAddresses: an entry of spec.addresses cannot be read.
	InvalidAddresses Reason = "InvalidAddresses"
	// HostBitsIgnored: a prefix is written with host bits and read as its network.
	HostBitsIgnored Reason = "HostBitsIgnored"
	// OverlappingAddresses: an entry lies in another pool, or twice in this one.
	OverlappingAddresses Reason = "OverlappingAddresses"
	// AddressNotUsable: an entry holds a node's own address, or one that is never a host's.
	AddressNotUsable Reason = "AddressNotUsable"
	// InvalidSelector: a label selector cannot be read.
	InvalidSelector Reason = "InvalidSelector"
	// UnknownReference: the object names another one that does not exist.
	UnknownReference Reason = "UnknownReference"
	// InvalidPeer: fields of a BGPPeer contradict each other or cannot be read.
	InvalidPeer Reason = "InvalidPeer"
	// DuplicatePeer: another BGPPeer already has this address on the same nodes.
	DuplicatePeer Reason = "DuplicatePeer"
	// PeerIsSelf: the peer's address is a node's own address.
	PeerIsSelf Reason = "PeerIsSelf"
	// ConflictingRouterID: another BGPPeer gives the same nodes another router ID.
	ConflictingRouterID Reason = "ConflictingRouterID"
	// InvalidLocalPref: a local preference does not fit into 32 bits.
	InvalidLocalPref Reason = "InvalidLocalPref"
	// InvalidAggregation: an aggregation length is outside its family, or wider than the pool.
	InvalidAggregation Reason = "InvalidAggregation"
	// InvalidCommunity: a community cannot be read.
	InvalidCommunity Reason = "InvalidCommunity"
	// Unreadable: a field cannot be read into the type that it has: a number is too large, or a time is none.
	Unreadable Reason = "Unreadable"
	// Deleting: the object waits until the Services that hold its addresses let go.
	Deleting Reason = "Deleting"
)

// Reasons of Events on the Secret with the speakers' keys.
const (
	// InvalidKey: an entry is no key, and is not used.
	InvalidKey Reason = "InvalidKey"
)

// Object names a configuration object a Problem is about.
type Object struct {
	// Kind is the API kind, for example IPAddressPool or Service.
	Kind string
	// Namespace is empty for cluster-scoped kinds.
	Namespace string
	Name      string
}

// String returns "Kind namespace/name", or "Kind name" for cluster-scoped kinds.
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// MarshalText makes logs and debug pages show an object as an operator would write it.
func (o Object) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// A Problem is something the user must mend: one word, and one sentence that
// says what is wrong and what to do. It never stops anyone else from being served.
type Problem struct {
	Object  Object
	Reason  Reason
	Message string
	// Note: the object is wholly in force, but read in a way worth saying.
	Note bool
}
