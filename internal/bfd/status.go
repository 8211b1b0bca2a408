package bfd

import (
	"net/netip"
	"time"
)

// State of a session (RFC 5880 section 4.1, Sta).
type State uint8

// The states. AdminDown means that an administrator switched the session off. It gives no information about the path
// (RFC 5882 section 4.2).
const (
	AdminDown State = iota
	Down
	Init
	Up
)

// String returns the state in words,.
func (s State) String() string { return stateNames[s] }

var stateNames = [...]string{AdminDown: "admin-down", Down: "down", Init: "init", Up: "up"}

// Diagnostic is the reason why a session left the state Up (RFC 5880 section 4.1, Diag).
type Diagnostic uint8

// The diagnostics that this package sets.
const (
	NoDiagnostic Diagnostic = 0
	// Expired means that no packet was received for the detection time.
	Expired Diagnostic = 1
	// Signaled means that the neighbor reported the session as down.
	Signaled Diagnostic = 3
	// SwitchedOff means that an administrator switched the session off.
	SwitchedOff Diagnostic = 7
)

var diagnosticTexts = [...]string{
	NoDiagnostic: "no diagnostic",
	Expired:      "detection time expired",
	Signaled:     "neighbor signaled session down",
	SwitchedOff:  "administratively down",
}

// String returns the diagnostic in words.
func (d Diagnostic) String() string { return diagnosticTexts[d] }

// Peer is a desired session with a neighbor.
type Peer struct {
	// Name identifies the session. With other addresses, the same name means another session.
	Name string
	// Address is the address of the neighbor, without a zone.
	Address netip.Addr
	// Source is the address from which this node sends. With the zero Addr the kernel chooses.
	Source netip.Addr
	// Interface is the link on which packets are sent. A link-local Address requires it.
	Interface string `json:",omitempty"`
	// Links are the indices of the links on which the neighbor's packets may arrive. Without links the session is down.
	Links []int
	// MultiHop makes this a session across routers (RFC 5883).
	MultiHop bool `json:",omitempty"`
	// MinimumTTL is the lowest TTL of an accepted packet of a MultiHop session, which limits the distance of the
	// sender. A session over one hop accepts 255 only (RFC 5881 section 5).
	MinimumTTL uint8 `json:",omitempty"`
	// Transmit is the desired interval between this node's packets, and Receive the shortest interval that it accepts.
	Transmit, Receive time.Duration
	// Multiplier is the number of this node's packets in a row whose loss makes the neighbor's session fall.
	Multiplier uint8
	// Passive makes this node send nothing before it has received a packet (RFC 5880 section 6.1).
	Passive bool `json:",omitempty"`
}

// Status is the status of a session.
type Status struct {
	Name          string
	State, Remote State
	Diagnostic    Diagnostic
	// SwitchedOff reports whether the neighbor has switched the session off, and it has not been up since. Then the
	// state Down gives no information about the path (RFC 5882 section 4.2), even if the neighbor falls silent or
	// switches the session on again.
	SwitchedOff bool `json:",omitempty"`
	// Since is the time for which the session has been in its state.
	Since time.Duration
	// Ups counts how often the session came up.
	Ups uint64
	// Failures counts how often it fell. It is no failure if the neighbor switched the session off (RFC 5882 section
	// 4.2).
	Failures uint64
	// Transmit is the interval between this node's packets, before jitter.
	Transmit time.Duration
	// Detection is the silence after which the session falls; 0 if no packet was received yet.
	Detection time.Duration
	// Sent and Received count packets. Rejected counts packets from the neighbor's address that were not accepted.
	Sent, Received, Rejected uint64
	// Error is a sentence about why the session cannot come up, other than the neighbor's state and the path. Each such
	// reason may end.
	Error string `json:",omitempty"`
	// Refused reports whether the reason in Error lies with this node, its settings or its kernel. BGP cannot find out
	// about such a reason itself.
	Refused bool `json:",omitempty"`
}

// trouble is a reason on this node's side why a session cannot come up. The field refused is Status.Refused.
type trouble struct {
	refused bool
	text    string
}
