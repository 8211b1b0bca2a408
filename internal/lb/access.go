package lb

import "net/netip"

// Access is which clients may reach a Service, and how much of it they may use.
type Access struct {
	// Restricted: only clients in Allow may connect. With an empty Allow no client may.
	Restricted bool
	// Allow and Deny are masked prefixes of both families, ordered, none within another. Deny wins.
	Allow, Deny []netip.Prefix
	// InternalAllowed: the cluster's own pods and nodes may connect whatever Allow and Deny say.
	InternalAllowed bool
	// ConnectionLimit bounds the concurrent connections to one port of one address on one node; 0 is no bound.
	ConnectionLimit int
	// RateLimit bounds the new connections per second of one client to one port of one address on one node;
	// 0 is no bound.
	RateLimit int
	// LogDrops asks for a sampled log of the packets that the filter refuses.
	LogDrops bool
}

// HasRanges reports whether the filter looks at the source of a packet.
func (a Access) HasRanges() bool { return a.Restricted || len(a.Deny) > 0 }
