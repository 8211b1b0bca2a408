package lb

import (
	"net/netip"
	"time"
)

// State is everything a decision depends on, at one moment, as values.
type State struct {
	// Now is when the decision is made.
	Now time.Time
	// Namespaces maps a namespace's name to its labels.
	Namespaces map[string]map[string]string
	// Nodes by name.
	Nodes map[string]Node
	// Services that Holdfast serves, ordered by Key.
	Services []Service
	// Reserved addresses stand in the status of a Service that is not ours to serve: one of another
	// class, or one on its way out. Nobody is given them while they stand there.
	Reserved map[netip.Addr]Key
	// Leaving are Services that gave up what they held: deleted, or of another type now. Nobody is given
	// their addresses while they stand here.
	Leaving []Leaving
	// FloatingIPs ordered by Key.
	FloatingIPs []FloatingIP
	// Pools that are usable, the elder first (then by name): on a conflict the elder keeps the address.
	Pools             []Pool
	L2Advertisements  []L2Advertisement
	BGPAdvertisements []BGPAdvertisement
	Peers             []Peer
	// Members holds the names of the nodes whose speakers are alive, as the members see each other.
	Members map[string]bool
	// Here is what the node that decides knows of itself.
	Here Here
	// Links of each node on which it can announce, as its speaker told the others last. A node that is not
	// there has not told any, which is no reason against it.
	Links map[string][]Link
	// Stopping holds the nodes whose speakers are about to stop: they announce only what no other can.
	Stopping map[string]bool
	// Unfit has what nodes cannot do now, as their speakers told the others last; this node is no exception.
	Unfit map[string]Unfit
	// Left holds the nodes whose speakers said goodbye a short while ago: they announce nothing, and their
	// kernels forward what they did before.
	Left map[string]bool
	// HeldDown holds the nodes that were away and may soon be again: they take nothing back that another
	// node can announce.
	HeldDown map[string]bool
	// SpeakerDown holds members whose node is up while its speaker is not, a process that was killed and will
	// be back. They stay in Members for a while, since what arrives there is still served, but nobody answers
	// ARP or NDP there.
	SpeakerDown map[string]bool
}

// Node is what decides whether a node may attract traffic.
type Node struct {
	Name   string
	Labels map[string]string
	// Addresses are the node's own, from its status.
	Addresses []netip.Addr
	// Excluded: the label node.kubernetes.io/exclude-from-external-load-balancers stands and is obeyed.
	Excluded bool
	// NetworkUnavailable mirrors the node condition of that name.
	NetworkUnavailable bool
	// Draining: the node is cordoned, being deleted, or about to be removed by the autoscaler. It announces
	// only what no other node can.
	Draining bool
}

// FamilyPolicy is Service.spec.ipFamilyPolicy.
type FamilyPolicy string

// The policies of Kubernetes.
const (
	SingleStack      FamilyPolicy = "SingleStack"
	PreferDualStack  FamilyPolicy = "PreferDualStack"
	RequireDualStack FamilyPolicy = "RequireDualStack"
)

// Service is a Service of type LoadBalancer that is ours to serve.
type Service struct {
	Key Key
	UID string
	// Revision tells readings of a Service apart: two of one UID and Revision differ in nothing but their
	// endpoints and, where the pools differ, in PoolWishes. "" is unknown.
	Revision string
	Labels   map[string]string
	// Created orders Services that want the same address.
	Created time.Time
	// Families are those of its cluster IPs, the primary first; empty for a headless Service.
	Families     []Family
	FamilyPolicy FamilyPolicy
	// ClusterIPs of the Service, at most one of each family.
	ClusterIPs []netip.Addr
	// Ports the Service declares.
	Ports []Port
	// Local is externalTrafficPolicy: Local, and InternalLocal is internalTrafficPolicy: Local.
	Local, InternalLocal bool
	// RequestedAddresses are asked for by spec.loadBalancerIP or holdfast.dev/addresses.
	RequestedAddresses []netip.Addr
	// RequestedPool is asked for by holdfast.dev/pool.
	RequestedPool string
	Wish
	Access
	// Problem says why the request cannot be read; nil when it can.
	Problem *Problem
	// Addresses it holds, as its status says.
	Addresses []netip.Addr
	// AssignedFrom names the pool each address came from, for addresses that were cut from it since. An
	// address of it that is not in Addresses is what a restored Service had.
	AssignedFrom map[netip.Addr]string
	// ServingNodes are the nodes with an endpoint that can serve; endpoints without a node count
	// in Serving only.
	ServingNodes map[string]bool
	// Serving: at least one endpoint anywhere can serve.
	Serving bool
	// ServingAnywhere: one that can serve is on no node, as far as its EndpointSlice tells.
	ServingAnywhere bool
	// AnnouncedBy has the node that announced each address by ARP or NDP when its condition was written
	// last. Who takes over such an address announces it at once, also if it knows nothing but what the API
	// server holds; and the former owner still knows its connections.
	AnnouncedBy map[netip.Addr]string
}

// Port is one declared port of a Service.
type Port struct {
	// Protocol is TCP, UDP or SCTP.
	Protocol string
	Port     uint16
}

// Pool is a supply of addresses.
type Pool struct {
	Name   string
	Labels map[string]string
	// Ranges are disjoint, within the pool and between pools, in the order written.
	Ranges []Range
	// AutoAssign: may serve a Service that did not ask for it.
	AutoAssign bool
	// AvoidBuggyIPs leaves out IPv4 addresses that end in .0 and .255.
	AvoidBuggyIPs bool
	// Allocation restricts whom the pool serves; nil serves all.
	Allocation *Allocation
	// Deleting pools keep what they gave and give nothing new.
	Deleting bool
	// Unreadable pools lack fields that could not be read. They keep what they gave and give nothing new too.
	Unreadable bool
	PoolTerms
}

// Allocation is IPAddressPool.spec.serviceAllocation: the namespaces (by name
// or selector) and the Service selectors must both allow a Service, where given.
type Allocation struct {
	// Priority: a lower number is tried first; 0 is last.
	Priority int
	// ByNamespace: Namespaces or NamespaceSelectors were given, even if they match nothing.
	ByNamespace        bool
	Namespaces         []string
	NamespaceSelectors []Selector
	// ServiceSelectors restrict by the Service's labels; none allows all.
	ServiceSelectors []Selector
}

// Scope is what advertisements select by.
type Scope struct {
	// Pools by name, and PoolSelectors by label; both empty select all pools.
	Pools         []string
	PoolSelectors []Selector
	// NodeSelectors: none selects all nodes.
	NodeSelectors []Selector
	// ServiceSelectors: none selects all Services.
	ServiceSelectors []Selector
}

// L2Advertisement says which addresses are announced by ARP and NDP, and where.
type L2Advertisement struct {
	Name string
	Scope
	// Links are exact names of the links to announce on; none means all usable.
	Links []string
	// Preferred nodes, of those that may announce, rank by the sum of their weights.
	Preferred []Preference
}

// Preference is a weight of the nodes that a selector matches.
type Preference struct {
	Weight   int
	Selector Selector
}

// BGPAdvertisement says which addresses become routes, and to whom.
type BGPAdvertisement struct {
	Name string
	Scope
	// AggregationLength is the prefix length of IPv4 routes, 1 to 32.
	AggregationLength int
	// AggregationLengthV6 is the prefix length of IPv6 routes, 1 to 128.
	AggregationLengthV6 int
	// LocalPref is sent to peers of our own AS; 0 is not sent.
	LocalPref   uint32
	Communities []Community
	// Peers by name; none means all.
	Peers []string
}

// Peer is a router to hold a BGP session with.
type Peer struct {
	Name              string
	LocalASN, PeerASN uint32
	Address           netip.Addr
	Port              uint16
	// SourceAddress is the local end; the zero Addr leaves the choice to the kernel.
	SourceAddress netip.Addr
	// HoldTime is proposed in the OPEN message (RFC 4271 section 4.2).
	HoldTime time.Duration
	// KeepaliveTime is a third of HoldTime unless given.
	KeepaliveTime time.Duration
	// ConnectTime is the wait between attempts (RFC 4271 ConnectRetryTimer).
	ConnectTime time.Duration
	// RouterID is the BGP identifier; the zero Addr means the node's choice.
	RouterID netip.Addr
	// MultiHop allows a router more than one hop away.
	MultiHop bool
	// GracefulRestart keeps routes in the router while the speaker restarts (RFC 4724).
	GracefulRestart bool
	NodeSelectors   []Selector
	// Unusable says why the peer is not to be used on some of the selected nodes, by node name:
	// PeerIsSelf, DuplicatePeer or ConflictingRouterID.
	Unusable map[string]Reason
}
