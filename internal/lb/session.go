package lb

import (
	"net/netip"
	"slices"
	"time"
)

// What the speaker and its BGP engines send to each other, as values of encoding/gob: the speaker sends Orders, an
// engine Notices. A peer in the first Order is the whole configuration of an engine, so that it needs no arguments, no
// environment and no files, where others could read a password.

// Order is one message to an engine, which answers with a Notice when GoBGP has done all of it; an empty one asks for
// that answer only. The first has the Peer and its routes; the session opens when these are placed.
type Order struct {
	// Peer never changes during the life of an engine.
	Peer *Peer
	// Put are routes that are new or changed, without their Peers. Remove are prefixes of others.
	Put    []Route
	Remove []netip.Prefix
	// Leave, unless nil, ends the engine.
	Leave *Leave
}

// Leave is how a session ends. The engine then ends, too.
type Leave struct {
	// Graceful leaves the routes with a router that has graceful restart: no NOTIFICATION is sent (RFC 4724 section
	// 4.2).
	Graceful bool
	// Text is for the operators of the router (RFC 9003). The session then ends with Administrative Shutdown (RFC 4486
	// section 4), otherwise with Peer De-configured.
	Text string
}

// Notice is one message from an engine: the state of the session, and what was counted since the engine began.
type Notice struct {
	Session  Session
	Counters SessionCounters
	// Warning, unless empty, is a sentence for the speaker's log.
	Warning string
}

// Session is the state of the connection to one BGP peer.
type Session struct {
	// Peer is the peer's name. The speaker fills it in, and the Address and BFD.
	Peer    string
	Address netip.Addr
	// State is idle, connect, active, opensent, openconfirm or established (RFC 4271
	// section 8.2.2); GoBGP itself dials and awaits the first OPEN in active.
	State string
	// Since when the session is up, or down after it was up; zero if it was never up.
	Since time.Time
	// LastError is a sentence about why a session is not established.
	LastError string
	// Families are the families whose routes an established session carries.
	Families []Family
	// Withheld is a sentence about routes that an established session does not carry, though it should.
	Withheld string
	// Advertised is the number of routes advertised to the peer.
	Advertised int
	// Capabilities are what both ends of an established session can do, in words.
	Capabilities []string
	// HoldTime and Keepalive are the timers of an established session, in seconds (RFC 4271 section 4.2).
	HoldTime, Keepalive uint64
	// BFD is the state of the BFD session; empty without one.
	BFD string
}

// Established is the state of a session that carries routes.
const Established = "established"

// IsEstablished reports whether the session carries routes.
func (s Session) IsEstablished() bool { return s.State == Established }

// SessionCounters never go back during the life of an engine, but for Ignored, which is a gauge.
type SessionCounters struct {
	// UPDATE messages to the router, NOTIFICATION messages to it and from it.
	Updates, Sent, Received uint64
	// Ups are how often the session came up, Falls how often it was lost.
	Ups, Falls uint64
	// Ignored is how many routes the router sends.
	Ignored uint64
}

// Plus adds to totals what was counted between two notices of one engine.
func (c SessionCounters) Plus(before, after SessionCounters) SessionCounters {
	c.Updates += after.Updates - before.Updates
	c.Sent += after.Sent - before.Sent
	c.Received += after.Received - before.Received
	c.Ups += after.Ups - before.Ups
	c.Falls += after.Falls - before.Falls
	c.Ignored = after.Ignored
	return c
}

// SameAttributes compares routes without their prefixes and peers.
func (r Route) SameAttributes(o Route) bool {
	return r.LocalPref == o.LocalPref &&
		r.Prepend == o.Prepend &&
		r.MED == o.MED &&
		r.Leaving == o.Leaving &&
		slices.Equal(r.Communities, o.Communities)
}
