package lb

import "net/netip"

// Access is who may reach a Service, and how often.
type Access struct {
	// Restricted: only sources in Allow come in. With Allow empty nobody does.
	Restricted bool
	// Allow and Deny are masked prefixes of both families, ordered, none within another; Deny wins.
	Allow, Deny []netip.Prefix
	// ConnectionLimit bounds the concurrent connections to one port of one address on one node; 0 is no bound.
	ConnectionLimit int
	// RateLimit bounds the new connections per second of one source to one port of one address on one
	// node; 0 is no bound.
	RateLimit int
	// LogDrops asks for a sampled log of what is refused.
	LogDrops bool
}

// HasRanges reports whether it matters where a packet comes from.
func (a Access) HasRanges() bool { return a.Restricted || len(a.Deny) > 0 }

// Here is what one node knows of itself and the API server does not.
type Here struct {
	// Addresses on the node's links.
	Addresses []netip.Addr
	// Unfiltered: the node's packet filter is not in force, so that addresses with ranges must not attract
	// traffic to it.
	Unfiltered bool
	// Deaf: the node hears badly, by its own fault.
	Deaf bool
	// Lost are, where this node is cut off from half of the others or more, the nodes that it does not hear:
	// true are those whose kernels do not answer either, false those of which that is not known yet.
	Lost map[string]bool
	// Announced are the addresses that this node announces by ARP and NDP now; it matters where some are Lost.
	Announced map[netip.Addr]bool
	// Partition is what the other sides say where this node is cut off and can read it.
	Partition Partition
	// Before is what the node planned last; nil if it did not run, or stood still for so long that others may
	// have decided without it.
	Before *Before
	// Inherited has addresses that an earlier run of its speaker took over, and that of the former owner of each.
	Inherited map[netip.Addr]netip.Addr
}

// Partition is what speakers wrote that are running, and do not hear this node.
type Partition struct {
	// Elsewhere are the nodes that this side stands aside for, sorted; none if it does not.
	Elsewhere []string
	// Sides as each of the speakers knows its own, ordered by their names.
	Sides []Side
}

// Side is a side of a partition, as one speaker there knows it.
type Side struct {
	// First: the side goes before this one, which stands aside for it.
	First bool
	// Refuses has nodes that the side does not reach. It is cut off too, and announces nothing that
	// only these serve.
	Refuses map[string]bool
}

// Before is a plan as the next one sees it.
type Before struct {
	// Owners are the nodes that announced each address, as this node saw it.
	Owners map[netip.Addr]string
	// Relays of this node, ordered by address.
	Relays []Relay
}
