package lb

import "net/netip"

// Filter is what one node lets through to the addresses that Holdfast serves.
type Filter struct {
	// Guarded ranges are closed but for their frontends; disjoint, ordered. The address of a frontend is guarded
	// too, wherever it lies.
	Guarded []Range
	// Frontends ordered by address, protocol and port; no two have all three in common.
	Frontends []Frontend
	// Reset lists the ranges in which a closed port answers with a reset or an unreachable, as a host
	// without a listener does; elsewhere nothing answers.
	Reset []Range
	// Pings are the addresses whose echo requests this node answers, ordered.
	Pings []netip.Addr
}

// Frontend is a port of an address that a Service declares: the only way in.
type Frontend struct {
	Address netip.Addr
	// Protocol is TCP, UDP or SCTP.
	Protocol string
	Port     uint16
	// Service that declares it.
	Service Key
	// Restricted: only sources in Allow come in. With Allow empty nobody does.
	Restricted bool
	// Allow and Deny are masked prefixes of the address's family, ordered; Deny wins.
	Allow, Deny []netip.Prefix
	// Refuse: this node has no endpoint that may serve (externalTrafficPolicy: Local), so that who comes is
	// told at once.
	Refuse bool
	// ConnectionLimit bounds the concurrent connections on this node; 0 is no bound.
	ConnectionLimit int
	// RateLimit bounds the new connections per second of one source on this node; 0 is no bound.
	RateLimit int
	// ClusterIP is where traffic from within the cluster goes past every range; the zero Addr sends it the
	// way of all others.
	ClusterIP netip.Addr
	// LogDrops asks for a sampled log of what is refused.
	LogDrops bool
}

// HasRanges reports whether it matters where a packet comes from.
func (d Frontend) HasRanges() bool { return d.Restricted || len(d.Deny) > 0 }
