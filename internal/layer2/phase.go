package layer2

import (
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/link"
)

// phase is the progress of an address since it was set.
type phase uint32

const (
	// probing: it is new and we ask whether others have it; we do not answer yet
	// (RFC 5227 section 2.1.1, RFC 4862 section 5.4).
	probing phase = iota
	// conflicting: a foreign machine has it. We do not answer, and probe again periodically.
	conflicting
	// ours: we answer and announce.
	ours
	// standing: we answer for its owner (stand-in), and do not announce.
	standing
	// handing: another node owns it now; we answer until we hear that node.
	handing
	// offered: our plan does not come, so another node should own it; we answer until we hear one.
	offered
	// gone: we heard the new owner, or waited for it for too long.
	gone

	phases
)

// String returns the word for the state page.
func (p phase) String() string {
	return [phases]string{
		probing: "probing", conflicting: "conflicting", ours: "announced",
		standing: "standing in", handing: "handing over", offered: "offered to others", gone: "gone",
	}[p]
}

// answers reports whether a question is answered in this phase.
func (p phase) answers() bool { return p == ours || p == standing || p == handing || p == offered }

// status is the changing state of an address while it is set. Set, Offer and the goroutine
// of Run change it; readers of ports and Owned end handing and offered.
type status struct {
	phase    atomic.Uint32
	conflict atomic.Pointer[Conflict]
	// announced: the first announcement to all neighbours has left, on every link.
	announced atomic.Bool
}

// Conflict is a machine that has one of our addresses too: a foreign one that claims it, or any that answered for it. It represents all
// that claim the same address, until it has been silent for conflictAge.
type Conflict struct {
	MAC link.MAC
	// Link on which it was seen, by name.
	Link string
	// Seen is when this machine was last seen.
	Seen time.Time
	// Since and Last are when any claimant was first and last seen.
	Since, Last time.Time
}

func newStatus(p phase) *status {
	s := &status{}
	s.phase.Store(uint32(p))
	return s
}

func (s *status) is() phase { return phase(s.phase.Load()) }

// become changes the phase from from to to, and reports whether it was from.
func (s *status) become(from, to phase) bool {
	return s.phase.CompareAndSwap(uint32(from), uint32(to))
}
