package lb

import "net/netip"

// Filter is which packets one node lets through to the addresses that Holdfast serves.
type Filter struct {
	// Guarded are the ranges that are closed except for their frontends; disjoint and ordered. The address of
	// a frontend is guarded too, even outside these ranges.
	Guarded []Range
	// Frontends ordered by address, protocol and port; no two have all three in common.
	Frontends []Frontend
	// Reset are the ranges in which a closed port answers with a TCP reset or an ICMP unreachable, as a host
	// without a listener does. Elsewhere closed ports drop packets silently.
	Reset []Range
	// Pings are the addresses whose echo requests this node answers, ordered.
	Pings []netip.Addr
}
