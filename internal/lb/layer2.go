package lb

import (
	"net/netip"
	"slices"
	"time"
)

// Layer2 is what a node answers by ARP and Neighbor Discovery at one moment.
type Layer2 struct {
	// Links in use, by name, sorted.
	Links []string
	// Refused are the links on which this node cannot answer.
	Refused []Refusal
	// Addresses in order.
	Addresses []AddressState
}

// Refusal is a link that may announce, but whose packet sockets cannot be opened.
type Refusal struct {
	Link string
	// Error of opening the sockets. It names the link.
	Error string
}

// AddressState is an address with the links on which it is answered.
type AddressState struct {
	Address netip.Addr
	// Links by name, sorted, without those on which another machine was first; empty while no suitable link exists.
	Links []string
	// Refused are the errors of links that should answer and cannot.
	Refused []string
	// Phase is the address's phase on all Links, a word for people.
	Phase string
	// Answered: this node answers for the address as its owner. Pending: it is still unknown if and where the address
	// may be announced.
	Answered, Pending bool
	// Conflicts are the machines that have it too, at most one on a link, by link.
	Conflicts []Conflict
}

// StateOf finds the state of an address among those in order.
func StateOf(states []AddressState, a netip.Addr) (state AddressState, found bool) {
	i, found := slices.BinarySearchFunc(
		states,
		a,
		func(s AddressState, a netip.Addr) int { return s.Address.Compare(a) },
	)
	if found {
		state = states[i]
	}
	return state, found
}

// Conflict is a machine that has one of our addresses too: a foreign machine that claims it, or any machine that
// answered for it. It represents all that claim the same address on its link, until it has been silent for a while.
type Conflict struct {
	MAC MAC
	// Link on which it was seen, by name.
	Link string
	// Seen is when this machine was last seen.
	Seen time.Time
	// Since and Last are when any claimant was first and last seen.
	Since, Last time.Time
}
