// Package lb is the vocabulary of Holdfast: plain values that all other packages share. It imports the
// standard library only, does no I/O and decides nothing.
package lb

import (
	"net/netip"
	"time"
)

// State is everything that a decision depends on, at one moment, as values. It is large because it is the whole input
// of assignments and plans; each source sets its fields.
type State struct {
	// Now is when the decision is made.
	Now time.Time
	// Namespaces maps the name of each namespace to its labels.
	Namespaces map[string]map[string]string
	// Nodes by name.
	Nodes map[string]Node
	// Services that Holdfast serves, ordered by Key.
	Services []*Service
	// Reserved are addresses in the status of Services that Holdfast does not serve: of another class, or on
	// their way out. They are not assigned while they stand there.
	Reserved map[netip.Addr]Key
	// ClosedIPs are the addresses of pools in spec.externalIPs of Services that stay closed. A speaker does not read
	// them.
	ClosedIPs []ExternalIP
	// Foreign are addresses that machines have or claim that are none of ours, as speakers report; ordered. Pools give
	// them last: a report is no proof.
	Foreign []netip.Addr
	// Claims are addresses that objects may have got by writes without an answer. If two objects have one, the first
	// claims it.
	Claims []Claim
	// Leaving are Services that are to lose their addresses. These are not assigned to others while they
	// stand here.
	Leaving []Leaving
	// NotServed has the UIDs of Services of other types and classes that are not being deleted. It is
	// read only where there are FloatingIPs.
	NotServed map[Key]string
	// FloatingIPs ordered by Key.
	FloatingIPs []FloatingIP
	// Pools that are usable, ordered by age, then by name: if two overlap, the older one keeps the address.
	Pools            []Pool
	L2Advertisements []L2Advertisement
	// BGPAdvertisements, oldest first: if two give a route different attributes, the older one's are used.
	BGPAdvertisements []BGPAdvertisement
	Peers             []Peer
	// Slices are the ports that pods send from, ordered by Address and First. No two overlap.
	Slices []PortSlice
	// EgressPods are the pods in namespaces of Services with Egress that have an address, ordered by Key. A speaker has
	// only pods of its own node.
	EgressPods []Pod
	// ProxyNodes are the nodes on which a proxy is ready.
	ProxyNodes Names
	// ProxyPods are the proxies that serve, ordered by name.
	ProxyPods []ProxyPod
	// OtherDataPath: another program than kube-proxy delivers, and no node filters.
	OtherDataPath bool
	// Members are the names of the nodes whose speakers are alive, by the verdict of all speakers.
	Members map[string]bool
	// Speakers has an address of each node with a speaker.
	Speakers map[string]netip.Addr
	// Here is what the deciding node knows of itself.
	Here Here
	// Links on which each node can announce, from its speaker's metadata. A node without an entry has sent
	// none, which is no reason against it.
	Links map[string][]Link
	// Stopping are the nodes whose speakers are about to stop: they announce only what no other node can
	// announce.
	Stopping map[string]bool
	// Unfit is what nodes cannot do now, from their speakers' metadata; this node's own included.
	Unfit map[string]Unfit
	// LacksProxy are the namespaces, by NamespaceHash, that the proxies of a node do not serve now.
	LacksProxy map[string][]uint32
	// Left are the nodes whose speakers said goodbye a short while ago: they announce nothing, but their
	// kernels still forward. What no other node may announce is answered for them.
	Left map[string]bool
	// HeldDown are the nodes that were away and may soon be away again, and those that say lb.APIBehind: they take
	// nothing that another node can announce.
	HeldDown map[string]bool
	// SpeakerDown are members whose node is up while its speaker is not: its process was killed and will be
	// started again. They stay in Members for a while, since their kernels still forward, but they do not
	// answer ARP or NDP.
	SpeakerDown map[string]bool
}

// Here is what one node knows of itself that the API server does not. It is large because every fact is a field of its
// own, so that a plan depends on nothing that has no name here.
type Here struct {
	// Addresses on the node's links.
	Addresses []netip.Addr
	// Unfiltered: the node's packet filter is not in force, so that the node must not attract traffic for
	// addresses with source ranges.
	Unfiltered bool
	// Refused are the Services whose source ranges the node's kernel refuses. Their addresses are closed here, so that
	// the node must not attract traffic for them; the filter of all others is in force.
	Refused Map[Key, struct{}]
	// Unserved are Services with externalTrafficPolicy Local whose endpoints on this node kube-proxy does not serve
	// yet.
	Unserved map[Key]bool
	// Hears has the nodes whose speakers are alive, as heartbeats alone tell.
	Hears map[string]bool
	// HearsBadly: few heartbeats of others arrive, and the fault is this node's own.
	HearsBadly bool
	// GivenUp: the others consider this node dead, and do not hear that it is not. They have its addresses.
	GivenUp bool
	// PathFails: the network between the nodes fails, and a node reaches no endpoints but its own. Nodes announce as
	// before on links to other networks.
	PathFails bool
	// CutOffFrom are the nodes that this one does not hear, if they are half of the others or more. The value
	// is true if the node's kernel does not answer either, false while that is not known.
	CutOffFrom map[string]bool
	// Announced are the addresses that this node announces by ARP and NDP now; set only while it is cut off.
	Announced Map[netip.Addr, *Announcement]
	// Advertised are the addresses that this node advertises by BGP by its last plan, in any epoch; until then, if it
	// leaves them.
	Advertised Map[netip.Addr, time.Time]
	// Partition is what other sides of a partition wrote, if this node is cut off and reaches the API server.
	Partition Partition
	// Newer maps addresses that this node may own by its State to the nodes that own them by a newer one: those heard
	// the API server clearly later, or have precedence in another way (see Precedence).
	Newer map[netip.Addr]string
	// EgressLacks says why no pod of this node may send from an address of a Service, for each family in which none
	// may.
	EgressLacks map[Family]string
	// Ways are the default routes of this node, by the names of its links.
	Ways map[string][]Way
	// Newcomers are the new addresses by this node's last plan, in any epoch.
	Newcomers Newcomers
	// Previous is this node's last plan. It is nil if the speaker has just started, or was stopped for so long
	// that others may have decided without it.
	Previous *Previous
	// Inherited maps each address that an earlier run of this speaker took over to an address of its former
	// owner, even if the relay has ended.
	Inherited map[netip.Addr]netip.Addr
}

// Previous is what the next plan needs to know of the last one.
type Previous struct {
	// Owners are the nodes that announced each address, as this node saw it.
	Owners Map[netip.Addr, string]
	// Relays of this node.
	Relays Map[netip.Addr, Relay]
}

// Partition is what running speakers wrote that do not hear this node.
type Partition struct {
	// YieldsTo are the nodes of the sides that precede this one, sorted. This side leaves to them every address
	// that they may announce.
	YieldsTo []string
	// Apart: these sides are cut off too and no kernel there answers, so that they announce nothing that only nodes
	// beyond them can serve.
	Apart bool
	// Divided: any other side runs.
	Divided bool
}

// Sooner returns the earlier of two times; the zero Time is never.
func Sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
