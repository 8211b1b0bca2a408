package bfd

import (
	"net/netip"
	"time"
)

// State of a session (RFC 5880 section 4.1, Sta).
type State uint8

// The states. A session whose administrator switched it off is AdminDown, which says nothing about the path
// (RFC 5882 section 4.2).
const (
	AdminDown State = iota
	Down
	Init
	Up
)

func (s State) String() string { return stateNames[s] }

var stateNames = [...]string{AdminDown: "admin-down", Down: "down", Init: "init", Up: "up"}

// Diagnostic is why a session left the state Up (RFC 5880 section 4.1, Diag).
type Diagnostic uint8

// The diagnostics that this package sets.
const (
	NoDiagnostic Diagnostic = 0
	// Expired: nothing was heard for the detection time.
	Expired Diagnostic = 1
	// Signaled: the neighbor says that the session is down.
	Signaled Diagnostic = 3
	// SwitchedOff: the administrator switched the session off.
	SwitchedOff Diagnostic = 7
)

var diagnosticTexts = [...]string{
	NoDiagnostic: "no diagnostic",
	Expired:      "detection time expired",
	Signaled:     "neighbor signaled session down",
	SwitchedOff:  "administratively down",
}

func (d Diagnostic) String() string { return diagnosticTexts[d] }

// Peer is a session that is wanted with a neighbor.
type Peer struct {
	// Name is the session's identity: the same name with other addresses is another session.
	Name string
	// Address of the neighbor, without a zone, and the address that this node sends from; the kernel chooses if it is
	// the zero Addr.
	Address, Source netip.Addr
	// Interface that packets are sent by; required for a link-local address.
	Interface string `json:",omitempty"`
	// Links are the indices of the links that the neighbor's packets may arrive by. Without any the session is down.
	Links []int
	// MultiHop is a session across routers (RFC 5883). MinimumTTL is what a packet of it must have when it arrives,
	// which bounds how far away its sender may be. A session with one hop accepts 255 only (RFC 5881 section 5).
	MultiHop   bool  `json:",omitempty"`
	MinimumTTL uint8 `json:",omitempty"`
	// Transmit and Receive are the intervals that this node wishes to send at and accepts.
	Transmit, Receive time.Duration
	// Multiplier is how many of this node's packets the neighbor may miss.
	Multiplier uint8
	// Passive: send nothing before the neighbor has been heard (RFC 5880 section 6.1).
	Passive bool `json:",omitempty"`
}

// Status of a session.
type Status struct {
	Name          string
	State, Remote State
	Diagnostic    Diagnostic
	// SwitchedOff: the neighbor switched the session off, and it has not been up since. That it is down says nothing
	// about the path (RFC 5882 section 4.2), also when the neighbor says no more, or switches it on again.
	SwitchedOff bool `json:",omitempty"`
	// Since is how long the session has been in its state.
	Since time.Duration
	// Ups counts how often it came up. Failures counts how often it fell, unless the neighbor switched it off: that
	// says nothing about the path (RFC 5882 section 4.2).
	Ups, Failures uint64
	// Transmit is the interval that packets are sent at, before jitter. Detection is the silence after which the
	// session falls; 0 if the neighbor was never heard.
	Transmit, Detection time.Duration
	// Sent and Received are packets; Rejected are packets of the neighbor's address that the session did not accept.
	Sent, Received, Rejected uint64
	// Error is a sentence about why the session cannot come up, beside what its neighbor and the path do. Each such
	// reason ends.
	Error string `json:",omitempty"`
	// Refused: it is a reason of this node, its settings or its kernel. About others BGP may find out by itself.
	Refused bool `json:",omitempty"`
}

// trouble is why a session cannot come up on this node's side, in words; refused is as in Status.
type trouble struct {
	refused bool
	text    string
}
