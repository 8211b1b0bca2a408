package lb

import "net/netip"

// Access is who may reach a Service, and how often.
type Access struct {
	// Restricted: only sources in Allow come in. With Allow empty nobody does.
	Restricted bool
	// Allow and Deny are masked prefixes of both families, ordered, none within another; Deny wins.
	Allow, Deny []netip.Prefix
	// ConnectionLimit bounds the concurrent connections to one port of one address on one node; 0 is no bound.
	ConnectionLimit int
	// RateLimit bounds the new connections per second of one source to one port of one address on one
	// node; 0 is no bound.
	RateLimit int
	// LogDrops asks for a sampled log of what is refused.
	LogDrops bool
}

// HasRanges reports whether it matters where a packet comes from.
func (a Access) HasRanges() bool { return a.Restricted || len(a.Deny) > 0 }
