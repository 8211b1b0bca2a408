package lb

import (
	"fmt"
	"net/netip"
	"time"
)

// BFD is how a BFD session runs (RFC 5880).
type BFD struct {
	// Transmit and Receive are the shortest intervals at which this node sends and accepts packets.
	Transmit, Receive time.Duration
	// Multiplier is how many packets of this node the router may miss.
	Multiplier uint8
	// Passive waits for the router to begin.
	Passive bool
	// MinimumTTL is what packets must have that come across routers.
	MinimumTTL uint8
}

// Peer is a router to hold a BGP session with.
type Peer struct {
	Name string
	// LocalASN is the AS of this node as the router sees it. PeerASN is the router's; 0 is any but LocalASN.
	LocalASN, PeerASN uint32
	// Address has the link as its zone if it is link-local. With Interface it is the zero Addr until a router was found there.
	Address netip.Addr
	// Interface is the link on which the router is to be found; empty for a router with an address.
	Interface string
	Port      uint16
	// SourceAddress is the local address of the connection; with the zero Addr the kernel chooses it.
	SourceAddress netip.Addr
	// HoldTime is proposed in the OPEN message (RFC 4271 section 4.2).
	HoldTime time.Duration
	// KeepaliveTime is the interval of KEEPALIVE messages, by default a third of HoldTime.
	KeepaliveTime time.Duration
	// ConnectTime is the pause between attempts to connect (ConnectRetryTimer, RFC 4271 section 8.1.1).
	ConnectTime time.Duration
	// RouterID is the BGP identifier; with the zero Addr the node chooses it.
	RouterID netip.Addr
	// MultiHop allows a router more than one hop away.
	MultiHop bool
	// MinTTL is the least TTL that packets of the router must arrive with (RFC 5082); 0 is any.
	MinTTL uint8
	// Password signs the segments of the connection (TCP MD5, RFC 2385); empty for none.
	Password Secret
	// DualStack: the session carries routes of both families, and not of its own only.
	DualStack bool
	// GracefulRestart keeps routes in the router while the speaker restarts (RFC 4724).
	GracefulRestart bool
	NodeSelectors   []Selector
	// BFD, unless nil, is the BFD session that this one depends on (RFC 5882).
	BFD *BFD
	// Unusable maps the selected nodes that must not use the peer to the reason: PeerIsSelf, DuplicatePeer or
	// ConflictingRouterID.
	Unusable map[string]Reason
}

// Carries reports whether the session carries routes of a family.
func (p Peer) Carries(f Family) bool { return p.DualStack || FamilyOf(p.Address) == f }

// Route is one prefix that a node advertises to some of its peers.
type Route struct {
	Prefix netip.Prefix
	// Peers by name, sorted, never empty.
	Peers []string
	// LocalPref (RFC 4271 section 5.1.5) is sent to peers of the same AS only; 0 is not sent.
	LocalPref uint32
	// Prepend is how often our AS is in AS_PATH beyond the once that BGP wants; for peers of another AS only.
	Prepend uint8
	MED     MED
	// Leaving: the node is about to withdraw the route, so that routers must prefer all others. It bears the community
	// GRACEFUL_SHUTDOWN and LOCAL_PREF 0 (RFC 8326 section 4.1).
	Leaving bool
	// Communities are sorted and free of duplicates.
	Communities []Community
}

// MED is the MULTI_EXIT_DISC of a route (RFC 4271 section 5.1.4), which a route need not have; 0 is the best.
type MED struct {
	Sent  bool
	Value uint32
}

// String returns the number, or "none".
func (m MED) String() string {
	if !m.Sent {
		return "none"
	}
	return fmt.Sprint(m.Value)
}

// Community is a BGP community (RFC 1997) or, with Large set, a large community (RFC 8092).
type Community struct {
	Large bool
	// A is the global administrator: 16 bits in a plain community, 32 bits in a large one.
	A uint32
	// B is the local part of a plain community (16 bits), or the first local part of a large one (32 bits).
	B uint32
	// C is the second local part of a large community (32 bits).
	C uint32
}

// String returns "a:b" or "large:a:b:c".
func (c Community) String() string {
	if c.Large {
		return fmt.Sprintf("large:%d:%d:%d", c.A, c.B, c.C)
	}
	return fmt.Sprintf("%d:%d", c.A, c.B)
}
