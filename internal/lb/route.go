package lb

import (
	"fmt"
	"net/netip"
)

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
