package lb

import "net/netip"

// Member is what a speaker tells the other speakers of itself.
type Member struct {
	// Stopping: it is about to leave; what it announces is to be taken over.
	Stopping bool
	// Unfit is what its node cannot do now.
	Unfit Unfit
	// Links on which its node can announce.
	Links []Link
	// Partial: there are more links than can be told.
	Partial bool
}

// Unfit is what a node cannot do though its speaker lives: a set of bits. All nodes plan by what it told.
type Unfit uint8

const (
	// Booting: its kube-proxy has not served since the node was started, so that the node announces nothing.
	Booting Unfit = 1 << iota
	// Unfiltered: its packet filter is not in force, so that it announces nothing that has ranges.
	Unfiltered
)

// Has reports whether the set has all of these.
func (u Unfit) Has(v Unfit) bool { return u&v == v }

// Link is a network interface on which a node can answer ARP and NDP.
type Link struct {
	Name string
	// MAC is its Ethernet address.
	MAC [6]byte
	// Default: it announces addresses that name no links too.
	Default bool
	// Refused: its packet sockets cannot be opened, so that the node answers nothing there.
	Refused bool
	// Silent: the node hears nobody there, though it did.
	Silent bool
	// Prefixes are the subnets that it has an address of, masked.
	Prefixes []netip.Prefix
	// Addresses by which others on the link reach the node, at most one of each family; none if it did not tell.
	Addresses []netip.Addr
}
