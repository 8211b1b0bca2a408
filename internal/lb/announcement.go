package lb

import "net/netip"

// Announcement is one address for which a node answers ARP or NDP.
type Announcement struct {
	Address netip.Addr
	// Links restricts the answers to these links, by name; none means all usable links.
	Links []string
	// Probe: nobody announced the address before, so that another machine may have it. The node probes for it
	// first (RFC 5227 section 2.1.1).
	Probe bool
	// MAC replaces the link's own MAC in answers: the node stands in for an owner whose speaker is down, and
	// whose kernel forwards all the same. A stand-in sends no gratuitous ARP. The zero MAC is the link's own.
	MAC [6]byte
}
