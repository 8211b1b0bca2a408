// Package wire is what the speaker and its BGP engines say to each other, as values of encoding/gob: the speaker sends
// Orders, an engine sends Notices. A value of the first Order is the whole configuration of an engine, so that it needs no
// arguments, no environment and no files, where others could read a password.
package wire

import (
	"net/netip"
	"reflect"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Order is one message to an engine. The first has Settings and Routes; the session opens when these are placed.
type Order struct {
	Settings *Settings
	Routes   Change
	// Ping is answered by a Notice when everything before it is done.
	Ping bool
	// Leave, unless nil, ends the engine.
	Leave *Leave
}

// Settings of one session. They never change during the life of an engine.
type Settings struct {
	lb.Peer
	// Check is how often the engine looks at the session and at this node's addresses, beside each change of the session.
	Check time.Duration
}

// Equal reports whether both are the same.
func (s Settings) Equal(o Settings) bool { return reflect.DeepEqual(s, o) }

// Change is a change of the routes. The Peers of routes are not sent.
type Change struct {
	// Put are routes that are new or changed.
	Put    []lb.Route
	Remove []netip.Prefix
}

// Empty reports whether nothing changes.
func (c Change) Empty() bool { return len(c.Put)+len(c.Remove) == 0 }

// Leave says how a session ends. The engine then ends, too.
type Leave struct {
	// Graceful leaves the routes with a router that has graceful restart: nothing is said (RFC 4724 section 4.2).
	Graceful bool
	// Text is for the operators of the router (RFC 9003). The session ends with Administrative Shutdown (RFC 4486
	// section 4) then, otherwise with Peer De-configured.
	Text string
}

// Notice is one message from an engine.
type Notice struct {
	Report *Report
	// Warning, unless empty, is a sentence for the speaker's log.
	Warning string
	// Pong answers a Ping.
	Pong bool
}

// Report is the state of the session, and what was counted since the engine began.
type Report struct {
	Session  Session
	Counters Counters
}

// Session is the state of the connection to one peer.
type Session struct {
	// Peer is the peer's name. The speaker fills it in, and the Address and BFD.
	Peer    string
	Address netip.Addr
	// State is idle, connect, active, opensent, openconfirm or established (RFC 4271
	// section 8.2.2); GoBGP dials and awaits the first OPEN in active.
	State string
	// Since when the session is up, or down after it was up; zero if it was never up.
	Since time.Time
	// LastError is a sentence about why a session is not established.
	LastError string
	// Families are those whose routes an established session carries.
	Families []lb.Family
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

// RestartTime is how long routers keep the routes of a session that is opened again, in seconds (RFC 4724 section 3). It is
// enough for a container whose image is there. If an image is pulled for longer, the routes go, and other nodes serve.
// Each second more is one more for which a node that went down without a word is sent traffic.
const RestartTime = 20

// Counters never go back during the life of an engine, but for Ignored, which is a gauge.
type Counters struct {
	// UPDATE messages to the router, NOTIFICATION messages to it and from it.
	Updates, Sent, Received uint64
	// Ups are how often the session came up, Falls how often it was lost.
	Ups, Falls uint64
	// Ignored is how many routes the router sends.
	Ignored uint64
}

// Plus adds to totals what was counted between two reports of one engine.
func (c Counters) Plus(before, after Counters) Counters {
	c.Updates += after.Updates - before.Updates
	c.Sent += after.Sent - before.Sent
	c.Received += after.Received - before.Received
	c.Ups += after.Ups - before.Ups
	c.Falls += after.Falls - before.Falls
	c.Ignored = after.Ignored
	return c
}
