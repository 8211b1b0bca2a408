package lb

import (
	"net/netip"
	"time"
)

// Announcement is one address that a node answers ARP or NDP for.
type Announcement struct {
	Address netip.Addr
	// Links restricts the answer to these links by name; none means all usable.
	Links []string
	// Probe: the address was never announced before, so that somebody else may have it (RFC 5227 section 2.1.1).
	Probe bool
	// MAC is answered with in place of the link's own, in the stead of an owner whose speaker is mute: what
	// arrives there is served all the same. Nothing is announced then. The zero MAC means our own.
	MAC [6]byte
}

// Relay hands the connections to an address that this node took over, and does not know, to who had it before.
type Relay struct {
	Address netip.Addr
	// Former is the node that announced the address before.
	Former string
	// Via is an address of that node, of the same family, on the link of this name of ours; the zero Addr is
	// none: the node cannot be reached without a router.
	Via  netip.Addr
	Link string
	// Until is when the relay ends because the address is another node's by now; zero while it is ours.
	Until time.Time `json:",omitzero"`
}

// Route is one prefix that a node advertises to some of its peers.
type Route struct {
	Prefix netip.Prefix
	// Peers by name, sorted, never empty.
	Peers []string
	// LocalPref goes to peers of our own AS only; 0 is not sent.
	LocalPref uint32
	// Communities are sorted and free of duplicates.
	Communities []Community
}
