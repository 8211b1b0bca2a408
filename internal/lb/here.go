package lb

import "net/netip"

// Here is what one node knows of itself and the API server does not.
type Here struct {
	// Addresses on the node's links.
	Addresses []netip.Addr
	// Unfiltered: the node's packet filter is not in force, so that addresses with ranges must not attract
	// traffic to it.
	Unfiltered bool
	// HearsBadly: heartbeats of others hardly arrive, by this node's own fault.
	HearsBadly bool
	// CutOffFrom has the nodes that this one does not hear, where these are half of the others or more: true
	// if the node's kernel does not answer either, false while that is not known.
	CutOffFrom map[string]bool
	// Announced are the addresses that this node announces by ARP and NDP now; it matters where it is cut off.
	Announced map[netip.Addr]bool
	// Partition is what the other sides say where this node is cut off and can read it.
	Partition Partition
	// Previous is what the node planned last; nil if it did not run, or stood still for so long that others
	// may have decided without it.
	Previous *Previous
	// Inherited has addresses that an earlier run of its speaker took over, and that of the former owner of each.
	Inherited map[netip.Addr]netip.Addr
}

// Partition is what speakers wrote that are running, and do not hear this node.
type Partition struct {
	// YieldsTo are the nodes of sides that go before this one, sorted: this side announces nothing that they may.
	YieldsTo []string
	// Sides as each of the speakers knows its own, ordered by their names.
	Sides []Side
}

// Side is a side of a partition, as one speaker there knows it.
type Side struct {
	// Precedes: the side goes before this one, which yields to it.
	Precedes bool
	// Refuses has nodes that the side does not reach. It is cut off too, and announces nothing that
	// only these serve.
	Refuses map[string]bool
}

// Previous is a plan as the next one sees it.
type Previous struct {
	// Owners are the nodes that announced each address, as this node saw it.
	Owners map[netip.Addr]string
	// Relays of this node, ordered by address.
	Relays []Relay
}
