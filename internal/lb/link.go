package lb

import "net/netip"

// Link is a network interface on which a node can answer ARP and NDP.
type Link struct {
	Name string
	// MAC is the link's Ethernet address.
	MAC [6]byte
	// Default: the link also announces addresses whose L2Advertisement names no links.
	Default bool
	// Refused: the kernel refuses packet sockets on the link, so that the node answers nothing there.
	Refused bool
	// Silent: the node hears no other machine on the link, though it did before.
	Silent bool
	// Prefixes are the subnets in which the link has an address, masked.
	Prefixes []netip.Prefix
	// Addresses by which others on the link reach the node, at most one of each family; empty if the speaker
	// sent none.
	Addresses []netip.Addr
}
