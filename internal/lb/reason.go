package lb

// Reason is one CamelCase word that says why something is as it is: the same word in the condition, the Event,
// the log line, the metric label and the test. reasons.yaml has what to do about each: see Remedy.
type Reason string

// Reasons of an assignment (condition holdfast.dev/AddressAssigned).
const (
	Assigned         Reason = "Assigned"         // the Service holds every address it asked for.
	PartlyAssigned   Reason = "PartlyAssigned"   // a PreferDualStack Service holds one of two families.
	NoPool           Reason = "NoPool"           // no pool exists, or none may serve this Service.
	NoFamily         Reason = "NoFamily"         // pools exist for the Service, none of the wanted family.
	PoolExhausted    Reason = "PoolExhausted"    // every pool that may serve the Service is full.
	UnknownPool      Reason = "UnknownPool"      // the Service asks for a pool that does not exist.
	PoolNotAllowed   Reason = "PoolNotAllowed"   // the Service asks for a pool that may not serve it.
	AddressInUse     Reason = "AddressInUse"     // the Service asks for an address that another one holds.
	AddressNotInPool Reason = "AddressNotInPool" // the Service asks for an address outside every pool.
	InvalidRequest   Reason = "InvalidRequest"   // what the Service asks for cannot be read or contradicts itself.
	TooManyPorts     Reason = "TooManyPorts"     // the Services of the namespace have more ports together than are served.
	NoClusterIP      Reason = "NoClusterIP"      // a headless Service of type LoadBalancer cannot be served.
	DualStackUnmet   Reason = "DualStackUnmet"   // RequireDualStack, but the Service has one family only.
	// AddressKept: the Service keeps an address that is not of the pool or kind that it asks for: until
	// holdfast.dev/pool can be met, or until it asks for an address by value or for holdfast.dev/renew.
	AddressKept Reason = "AddressKept"
	// ForeignAddress: the status has an address that another load balancer wrote and that no pool ever had.
	ForeignAddress      Reason = "ForeignAddress"
	UnknownClass        Reason = "UnknownClass"        // the Service names a class that no pool has.
	UnknownNetwork      Reason = "UnknownNetwork"      // the Service names a network or subnet that no pool stands for.
	UnknownLoadBalancer Reason = "UnknownLoadBalancer" // the Service names a load balancer that no Service has.
	// PortClash: another Service on the shared address has the port, or pods send from it.
	PortClash    Reason = "PortClash"
	NotShareable Reason = "NotShareable" // the Service may not share the address with its holders.
	SharingLimit Reason = "SharingLimit" // the address has as many Services as may share it.
	// QuotaExceeded: the namespace holds as many addresses of the pool as it may.
	QuotaExceeded Reason = "QuotaExceeded"
	// Quarantined: the last free addresses of the pools, or the address that the Service waits for, wait for
	// reuseDelay.
	Quarantined        Reason = "Quarantined"
	FloatingIPUnknown  Reason = "FloatingIPUnknown"  // the Service claims a FloatingIP that its namespace does not have.
	FloatingIPPending  Reason = "FloatingIPPending"  // the FloatingIP claimed has no address yet.
	FloatingIPInUse    Reason = "FloatingIPInUse"    // another Service uses the FloatingIP claimed.
	FloatingIPDeleting Reason = "FloatingIPDeleting" // the FloatingIP claimed is being deleted.
	Available          Reason = "Available"          // the FloatingIP has its addresses, and no Service uses it.
	Bound              Reason = "Bound"              // a Service uses the FloatingIP.
	Released           Reason = "Released"           // the controller took the addresses of the Service back.
)

// Reasons of the condition holdfast.dev/AnnotationsHonoured.
const (
	AnnotationIgnored Reason = "AnnotationIgnored" // the Service has annotations that have no effect.
	NotKept           Reason = "NotKept"           // no FloatingIP is made of the Service's addresses.
)

// Reasons of the condition holdfast.dev/Proxied.
const (
	Proxied Reason = "Proxied" // proxies serve the Service.
	// ProxyWaits: the Service asks for proxies, and waits until they serve it, or until all Services on its address ask
	// for them.
	ProxyWaits Reason = "ProxyWaits"
	// ProxyRefused: the Service asks for proxies that it may not have, so that no node announces it.
	ProxyRefused Reason = "ProxyRefused"
)

// Reasons of a Service of which proxies serve a part, or whose TLS ends at them (conditions
// holdfast.dev/AnnotationsHonoured and holdfast.dev/Proxied). Proxies say them.
const (
	SecretMissing   Reason = "SecretMissing"   // the namespace has no Secret of the name.
	SecretForbidden Reason = "SecretForbidden" // the proxies have no right to read the Secret.
	SecretWrong     Reason = "SecretWrong"     // the Secret has no certificate with its key that HAProxy takes.
	KeyWrong        Reason = "KeyWrong"        // the key of the Secret is of another certificate.
	// CertificateExpired: the certificate has expired, or is not valid yet, and is served.
	CertificateExpired Reason = "CertificateExpired"
	// ProxyPortTaken: another program in the proxy's pod listens on a node port of the Service.
	ProxyPortTaken Reason = "ProxyPortTaken"
)

// Reasons of the condition holdfast.dev/Written.
const (
	// WriteRefused: the API server, or an admission policy, calls a part of the Service's status invalid.
	WriteRefused Reason = "WriteRefused"
)

// Reasons of a filter (conditions holdfast.dev/Filtered and holdfast.dev/FilterEnforced).
const (
	// Filtered: every range and limit of the Service and its pools is in force.
	Filtered Reason = "Filtered"
	// InvalidSourceRange: an entry of a list of source ranges cannot be read; the others are in force.
	InvalidSourceRange Reason = "InvalidSourceRange"
	// NoSourceAllowed: a list of source ranges has no readable entry, so that no client may connect.
	NoSourceAllowed Reason = "NoSourceAllowed"
	// ConflictingSourceRanges: two lists of source ranges differ, and one of them is in force.
	ConflictingSourceRanges Reason = "ConflictingSourceRanges"
	// InvalidLimit: a limit, or a request for a log, cannot be read and is not in force.
	InvalidLimit   Reason = "InvalidLimit"
	FilterDisabled Reason = "FilterDisabled" // filtering is turned off, so that source ranges and limits have no effect.
	// FilterNotEnforceable: packets may pass the packet filter by, or do without kube-proxy (dataPath: Other).
	FilterNotEnforceable Reason = "FilterNotEnforceable"
	// FilterNotInForce: the node cannot keep its packet filter in force, and announces nothing that has source ranges.
	FilterNotInForce Reason = "FilterNotInForce"
	// RangesRefused: the source ranges on the node are beyond its bound; the Services with most are closed there.
	RangesRefused Reason = "RangesRefused"
	// NodesUnfiltered: nodes that kube-proxy may serve the Service on do not enforce its source ranges.
	NodesUnfiltered Reason = "NodesUnfiltered"
	// StrictARPMissing: kube-proxy in mode IPVS makes the kernel answer ARP for every address of a Service.
	StrictARPMissing Reason = "StrictARPMissing"
)

// OfSecret reports whether a Reason is about the Secret with which TLS ends.
func (r Reason) OfSecret() bool {
	switch r {
	case SecretMissing, SecretForbidden, SecretWrong, KeyWrong, CertificateExpired:
		return true
	}
	return false
}

// OfProxy reports whether proxies give a Reason, about a Service that they do not serve as it asks.
func (r Reason) OfProxy() bool { return r == ProxyPortTaken || r.OfSecret() }

// OfFilter reports whether a Reason is about the source ranges and limits of a Service.
func (r Reason) OfFilter() bool {
	switch r {
	case InvalidSourceRange,
		NoSourceAllowed,
		ConflictingSourceRanges,
		InvalidLimit,
		FilterDisabled,
		FilterNotEnforceable,
		NodesUnfiltered,
		PortClash,
		TooManyPorts:
		return true
	}
	return false
}

// Reasons of an announcement (conditions holdfast.dev/AnnouncedL2 and
// holdfast.dev/AnnouncedBGP).
const (
	Announced         Reason = "Announced"         // at least one node makes the network deliver the addresses.
	NoAddress         Reason = "NoAddress"         // nothing is assigned yet.
	NoServingEndpoint Reason = "NoServingEndpoint" // no endpoint can serve, so that no node attracts traffic.
	NoLocalEndpoint   Reason = "NoLocalEndpoint"   // externalTrafficPolicy Local, and this node has no ready endpoint.
	// IgnoredByKubeProxy: kube-proxy does not serve the Service, by a label of the Service or of its EndpointSlices.
	IgnoredByKubeProxy Reason = "IgnoredByKubeProxy"
	// PortNotServed: the addresses are announced, and a port has no endpoint, or none on a node that announces.
	PortNotServed   Reason = "PortNotServed"
	NoAdvertisement Reason = "NoAdvertisement" // no advertisement selects the pool and the Service.
	// NoEligibleNode: advertisements exist, but no live node may announce.
	NoEligibleNode  Reason = "NoEligibleNode"
	NodeNotSelected Reason = "NodeNotSelected" // this node is in no advertisement's nodeSelectors.
	NodeExcluded    Reason = "NodeExcluded"    // label node.kubernetes.io/exclude-from-external-load-balancers.
	// NetworkUnavailable: the node's condition of this name is true, or no pod of another node has answered it since it
	// started.
	NetworkUnavailable Reason = "NetworkUnavailable"
	// NodeDraining: the node is being drained, or its speaker is about to stop, and another node announces.
	NodeDraining    Reason = "NodeDraining"
	AddressConflict Reason = "AddressConflict" // a foreign machine has the address.
	AddressFree     Reason = "AddressFree"     // no foreign machine claims an address of the pool any more.
	NoLink          Reason = "NoLink"          // the owner has no link on which it can announce the address.
	// LinkSilent: the node hears no other machine on a link that is up, though it did before, or the link has just
	// returned.
	LinkSilent Reason = "LinkSilent"
	// LinkDivided: two groups of nodes on a link each hear their own and not the other.
	LinkDivided Reason = "LinkDivided"
	// HeartbeatsBlocked: of heartbeats and gossip of other speakers only one arrives.
	HeartbeatsBlocked Reason = "HeartbeatsBlocked"
	// EchoBlocked: other speakers' heartbeats arrive, but not their answers in frames of Holdfast's own EtherType.
	EchoBlocked Reason = "EchoBlocked"
	// SocketRefused: the kernel refuses packet sockets on a link, so that the node answers nothing there.
	SocketRefused Reason = "SocketRefused"
	// KernelFeatureMissing: the node's kernel lacks what a part of Holdfast needs, or refuses it to the speaker.
	KernelFeatureMissing Reason = "KernelFeatureMissing"
	// KubeProxyNotReady: kube-proxy has not served since the node started, its rules are gone, or it does not serve the
	// Service's endpoints there yet.
	KubeProxyNotReady Reason = "KubeProxyNotReady"
	NotMember         Reason = "NotMember" // the other speakers do not count the node's speaker as alive.
	// CutOff: this node hears half of the speakers or fewer, and reaches no node with a serving endpoint.
	CutOff   Reason = "CutOff"
	NotOwner Reason = "NotOwner" // another node announces the address.
	// NoSubnet: a node announces the address on a link without its subnet, where hardly any client asks.
	NoSubnet Reason = "NoSubnet"
	NoPeer   Reason = "NoPeer" // no BGPPeer is usable on this node for the advertisement.
	// NoProxy: proxies should serve the Service, and none does on a node that may announce its addresses.
	NoProxy Reason = "NoProxy"
	// NoSession: peers are configured, but none of their sessions is established, on no node that advertises.
	NoSession Reason = "NoSession"
	// ConflictingAdvertisements: two advertisements give one route two values of localPref, med or asPathPrepend.
	ConflictingAdvertisements Reason = "ConflictingAdvertisements"
)

// Reasons of outgoing connections (condition holdfast.dev/Egress).
const (
	EgressActive      Reason = "EgressActive"      // the pods of the Service send from its addresses.
	EgressUnavailable Reason = "EgressUnavailable" // pods of the Service do not send from its addresses.
	InvalidSlice      Reason = "InvalidSlice"      // an EgressAllocation has a slice that cannot be used.
)

// OfEgress reports whether a Reason is about the pods that send from the addresses of a Service.
func (r Reason) OfEgress() bool { return r == EgressUnavailable }

// Reasons of a BGPPeer's sessions (condition Established).
const (
	SessionEstablished Reason = "SessionEstablished" // every node that should have a session has one.
	SessionConnecting  Reason = "SessionConnecting"  // nodes have no session yet, and none has failed.
	SessionDown        Reason = "SessionDown"        // a node has no session, which was lost or cannot come up.
	NoNodeSelected     Reason = "NoNodeSelected"     // the peer selects no node that has a speaker.
)

// Reasons about nodes that are dead (Events on Nodes and Services, condition
// EndpointsWithdrawn of a SpeakerState).
const (
	// NodeUnreachable: most speakers cannot reach the node, so that endpoints on it are withdrawn.
	NodeUnreachable Reason = "NodeUnreachable"
	NodeReachable   Reason = "NodeReachable" // the node lives after all, so that its endpoints are restored.
	// NodeGivenUp: Kubernetes itself has given the node up, and takes care of its pods.
	NodeGivenUp Reason = "NodeGivenUp"
	// TooManyUnreachable: more nodes than the limit fell silent at once, so that their endpoints stay.
	TooManyUnreachable Reason = "TooManyUnreachable"
	EndpointsWithdrawn Reason = "EndpointsWithdrawn" // endpoints of the Service are on a node that is unreachable.
	EndpointsRestored  Reason = "EndpointsRestored"  // withdrawn endpoints of the Service may serve again.
)

// Reasons of configuration objects (condition Valid).
const (
	Valid                Reason = "Valid"                // the whole object is in force.
	InvalidAddresses     Reason = "InvalidAddresses"     // an entry of spec.addresses cannot be read.
	HostBitsIgnored      Reason = "HostBitsIgnored"      // a prefix has host bits, which are ignored.
	OverlappingAddresses Reason = "OverlappingAddresses" // an entry lies in another pool, or twice in this one.
	// AddressNotUsable: an entry contains what belongs to the cluster, or an address that no host can have.
	AddressNotUsable Reason = "AddressNotUsable"
	// ExternalIPClosed: a Service has an address of a pool in spec.externalIPs, which the filter closes.
	ExternalIPClosed Reason = "ExternalIPClosed"
	InvalidSelector  Reason = "InvalidSelector"  // a label selector cannot be read.
	UnknownReference Reason = "UnknownReference" // the object names an object that does not exist.
	InvalidPeer      Reason = "InvalidPeer"      // fields of a BGPPeer contradict each other or cannot be read.
	// PasswordMissing: the Secret with a peer's password does not exist, or has no usable password.
	PasswordMissing     Reason = "PasswordMissing"
	DuplicatePeer       Reason = "DuplicatePeer"       // another BGPPeer already has this address on the same nodes.
	PeerIsSelf          Reason = "PeerIsSelf"          // the peer's address is a node's own address.
	ConflictingRouterID Reason = "ConflictingRouterID" // another BGPPeer gives the same nodes another router ID.
	// DuplicateAlias: an older Community, or a standard, gives the alias another meaning.
	DuplicateAlias Reason = "DuplicateAlias"
	// InvalidAggregation: an aggregation length is outside its family, or wider than the pool.
	InvalidAggregation Reason = "InvalidAggregation"
	InvalidCommunity   Reason = "InvalidCommunity" // a community cannot be read.
	Deleting           Reason = "Deleting"         // the object waits until no Service holds its addresses.
)

// Reasons of Events on the Secret with the membership's keys.
const (
	InvalidKey    Reason = "InvalidKey"    // an entry is not a key, and is not used.
	RotationWaits Reason = "RotationWaits" // speakers have not read the Secret, and the key in use cannot change before.
)
