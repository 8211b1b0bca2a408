package detect

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
)

// NodeID stands for a node's name in packets.
type NodeID uint64

// NodeIDOf hashes a name; among 10,000 names two are alike with a chance of 1 to 3*10^11.
func NodeIDOf(name string) NodeID {
	sum := sha256.Sum256([]byte(name))
	return NodeID(binary.BigEndian.Uint64(sum[:]))
}

// Status is what is known of a node.
type Status uint8

// From Alive to Left they are claims. Of two with the same incarnation the later in this order holds.
const (
	// Unknown: no node has heard of the node yet, or not for a long time.
	Unknown Status = iota
	// Alive and without restrictions.
	Alive
	// HoldDown: it is alive but was dead lately, and takes nothing back yet.
	HoldDown
	// SpeakerDown: the node's kernel refuses packets, so the node is up and its speaker is not.
	SpeakerDown
	// Dead: its watchers do not hear it.
	Dead
	// Left: it said goodbye.
	Left

	// ask is no claim but a watcher's question to another node. The answers: it heard the subject; it is a
	// watcher too and does not hear the subject; it does not watch the subject. Only a node that hears well
	// gives the latter two.
	ask       Status = 16
	heard     Status = 17
	silent    Status = 18
	unwatched Status = 19
	// givenUp says to its subject that the sender alone had given it up.
	givenUp Status = 20
)

var statusNames = map[Status]string{
	Unknown:     "unknown",
	Alive:       "alive",
	HoldDown:    "holdDown",
	SpeakerDown: "speakerDown",
	Dead:        "dead",
	Left:        "left",
}

// String returns the name used in logs and metrics.
func (s Status) String() string { return statusNames[s] }

// Living reports whether the speaker is running.
func (s Status) Living() bool { return s == Alive || s == HoldDown }

// NodeClaim is one statement about a node.
type NodeClaim struct {
	About  NodeID
	Status Status
	// deaths counts how often the subject was declared dead lately, outside of a hold-down.
	Deaths uint8
	// incarnation of the subject; in an answer heard, the age of what was heard in ms.
	Incarnation uint32
}

// isVerdict is false for questions and answers.
func (c NodeClaim) isVerdict() bool { return c.Status >= Alive && c.Status <= Left }

// died returns the deaths after one more. One in a hold-down does not count: it seldom moves an address, and one long
// fault makes many.
func (c NodeClaim) died() uint8 {
	if c.Status == HoldDown || c.Deaths == math.MaxUint8 {
		return c.Deaths
	}
	return c.Deaths + 1
}

// over reports whether c replaces old. Incarnations are serial numbers (RFC 1982): none is the last one, so that their
// subject can refute whatever a thief of the key said. 0 has a run that knows nothing yet.
func (c NodeClaim) over(old NodeClaim) bool {
	switch {
	case c.Incarnation == old.Incarnation:
		return c.Status > old.Status
	case c.Incarnation == 0 || old.Incarnation == 0:
		return old.Incarnation == 0
	}
	return int32(c.Incarnation-old.Incarnation) > 0
}

// next returns the incarnation after i.
func next(i uint32) uint32 { return max(i+1, 1) }
