package detect

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
)

// NodeID identifies a node in packets.
type NodeID uint64

// NodeIDOf returns a hash of a node's name. Among 10,000 names two have the same with a chance of 1 to 3*10^11.
func NodeIDOf(name string) NodeID {
	sum := sha256.Sum256([]byte(name))

	return NodeID(binary.BigEndian.Uint64(sum[:]))
}

// Status is the state of a node. From Alive to Left it is also what a claim asserts: of two claims with the same
// incarnation, the later status in this order wins.
type Status uint8

const (
	// Unknown is a node that no node has heard of yet, or not for a long time.
	Unknown Status = iota
	// Alive is a node without restrictions.
	Alive
	// HoldDown is a node that is alive and was dead recently. It takes no address back yet.
	HoldDown
	// SpeakerDown is a node whose kernel refuses packets: the node is up, and its speaker is not.
	SpeakerDown
	// Dead is a node that its watchers do not hear.
	Dead
	// Left is a node whose speaker said goodbye.
	Left
)

// These travel in a claim's Status, and assert no status of the subject.
const (
	// query is a watcher's question about a suspect. The three replies are: the sender heard the subject; it watches
	// the subject too, and does not hear it; it does not watch the subject. Only a node that hears others well gives
	// the last two.
	query          Status = 16
	replyHeard     Status = 17
	replySilent    Status = 18
	replyUnwatched Status = 19
	// privateDeath tells the subject that the sender alone considers it dead.
	privateDeath Status = 20
)

var statusNames = map[Status]string{
	Unknown:     "unknown",
	Alive:       "alive",
	HoldDown:    "holdDown",
	SpeakerDown: "speakerDown",
	Dead:        "dead",
	Left:        "left",
}

// String returns the name that logs and metrics use.
func (s Status) String() string { return statusNames[s] }

// Living reports whether the speaker is running.
func (s Status) Living() bool { return s == Alive || s == HoldDown }

// NodeClaim is one claim, question or reply about a node.
type NodeClaim struct {
	About  NodeID
	Status Status
	// Deaths counts how often the subject was declared dead recently, outside of a hold-down.
	Deaths uint8
	// Incarnation is the subject's. In replyHeard it is the age in ms of the last sign of life.
	Incarnation uint32
}

// isAssertion reports whether the claim asserts a status. Questions and replies do not.
func (c NodeClaim) isAssertion() bool { return c.Status >= Alive && c.Status <= Left }

// nextDeaths returns the number of deaths after another one. A death in a hold-down does not count: it seldom moves
// an address, and one long fault causes many.
func (c NodeClaim) nextDeaths() uint8 {
	if c.Status == HoldDown || c.Deaths == math.MaxUint8 {
		return c.Deaths
	}

	return c.Deaths + 1
}

// supersedes reports whether the claim replaces an old one. Incarnations are serial numbers (RFC 1982): none is the
// last one, so that a node can refute whatever a thief of the key claimed about it. A run that has no incarnation yet
// has 0.
func (c NodeClaim) supersedes(old NodeClaim) bool {
	switch {
	case c.Incarnation == old.Incarnation:
		return c.Status > old.Status
	case c.Incarnation == 0 || old.Incarnation == 0:
		return old.Incarnation == 0
	}

	return int32(c.Incarnation-old.Incarnation) > 0
}

// nextIncarnation returns the incarnation after another one.
func nextIncarnation(i uint32) uint32 { return max(i+1, 1) }
