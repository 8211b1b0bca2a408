package lb

import "net/netip"

// Member is what a speaker tells the other speakers of itself.
type Member struct {
	// Stopping: it is about to leave; what it announces is to be taken over.
	Stopping bool
	// Links on which its node can announce.
	Links []Link
	// Partial: there are more links than can be told.
	Partial bool
}

// Link is a network interface on which a node can answer ARP and NDP.
type Link struct {
	Name string
	// MAC is its Ethernet address.
	MAC [6]byte
	// Default: it announces addresses that name no links too.
	Default bool
	// Prefixes are the subnets that it has an address of, masked.
	Prefixes []netip.Prefix
	// Addresses by which others on the link reach the node, at most one of each family; none if it did not tell.
	Addresses []netip.Addr
}
