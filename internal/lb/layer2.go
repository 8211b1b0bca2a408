package lb

import (
	"net/netip"
	"time"
)

// Announcement is one address for which a node answers ARP or NDP.
type Announcement struct {
	Address netip.Addr
	// Links restricts the answers to these links, by name; none means all usable links.
	Links []string
	// Probe: nobody announced the address before, so that another machine may have it. The node probes for it
	// first (RFC 5227 section 2.1.1).
	Probe bool
	// MAC replaces the link's own MAC in answers: the node stands in for an owner whose speaker is away, and
	// whose kernel forwards all the same. A stand-in sends no gratuitous ARP. The zero MAC is the link's own.
	MAC [6]byte
}

// Relay sends packets of older connections to the former owner of an address that this node took over.
type Relay struct {
	Address netip.Addr
	// Former is the former owner, by node name.
	Former string
	// Via is an address of the former owner, of the same family, which this node reaches on Link without a
	// router. The zero Addr means that there is none.
	Via netip.Addr
	// Link is the name of a link of this node.
	Link string
	// Start is when the address moved here; zero for a relay of an earlier run of this speaker. A relay that ended
	// begins again only with another Start.
	Start time.Time `json:",omitzero"`
	// Until is when the relay ends because another node owns the address; zero as long as none does.
	Until time.Time `json:",omitzero"`
}
