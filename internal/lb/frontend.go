package lb

import "net/netip"

// Frontend is an address, protocol and port that a Service declares: the only way in.
type Frontend struct {
	Address netip.Addr
	// Protocol is TCP, UDP or SCTP.
	Protocol string
	Port     uint16
	// Service that declares it.
	Service Key
	// Restricted: only clients in Allow may connect. With an empty Allow no client may.
	Restricted bool
	// Allow and Deny are masked prefixes of the address's family, ordered. Deny wins.
	Allow, Deny []netip.Prefix
	// Refuse: this node has no serving endpoint for the Service (externalTrafficPolicy: Local), so that it
	// refuses connections at once.
	Refuse bool
	// ConnectionLimit bounds the concurrent connections on this node; 0 is no bound.
	ConnectionLimit int
	// RateLimit bounds the new connections per second of one client on this node; 0 is no bound.
	RateLimit int
	// ClusterIP is where a node redirects what it and its pods send, so that no source range applies to it; the
	// zero Addr means no redirection.
	ClusterIP netip.Addr
	// LogDrops asks for a sampled log of the packets that the filter refuses.
	LogDrops bool
}

// HasRanges reports whether the filter looks at the source of a packet.
func (f Frontend) HasRanges() bool { return f.Restricted || len(f.Deny) > 0 }
