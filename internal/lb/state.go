package lb

import (
	"net/netip"
	"time"
)

// State is everything that a decision depends on, at one moment, as values.
type State struct {
	// Now is when the decision is made.
	Now time.Time
	// Namespaces maps the name of each namespace to its labels.
	Namespaces map[string]map[string]string
	// Nodes by name.
	Nodes map[string]Node
	// Services that Holdfast serves, ordered by Key.
	Services []Service
	// Reserved are addresses in the status of Services that Holdfast does not serve: of another class, or on
	// their way out. They are not assigned while they stand there.
	Reserved map[netip.Addr]Key
	// Claims are addresses that objects may have got by writes without an answer. If two objects have one, the first claims it.
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
	// Members are the names of the nodes whose speakers are alive, by the verdict of all speakers.
	Members map[string]bool
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
	// Left are the nodes whose speakers said goodbye a short while ago: they announce nothing, but their
	// kernels still forward older connections.
	Left map[string]bool
	// HeldDown are the nodes that were away and may soon be away again: they take nothing back that another
	// node can announce.
	HeldDown map[string]bool
	// SpeakerDown are members whose node is up while its speaker is not: its process was killed and will be
	// started again. They stay in Members for a while, since their kernels still forward, but they do not
	// answer ARP or NDP.
	SpeakerDown map[string]bool
}
