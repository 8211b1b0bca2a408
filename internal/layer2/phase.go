package layer2

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/link"
)

// Phase is the progress of an address since it was set.
type Phase uint32

const (
	// Probing: it is new and we ask whether others have it; we do not answer yet
	// (RFC 5227 section 2.1.1, RFC 4862 section 5.4).
	Probing Phase = iota
	// conflicting, only on a link: a foreign machine there has it. We do not answer there, and probe again periodically.
	conflicting
	// Ours: we answer and announce.
	Ours
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
func (p Phase) String() string {
	return [phases]string{
		Probing: "probing", conflicting: "conflicting", Ours: "announced",
		standing: "standing in", handing: "handing over", offered: "offered to others", gone: "gone",
	}[p]
}

// MarshalText makes the state page show the word.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// answers reports whether a question is answered in this phase.
func (p Phase) answers() bool { return p == Ours || p == standing || p == handing || p == offered }

// status is the changing state of an address while it is set. Set, Offer and the goroutine
// of Run change it; readers of ports and Owned end handing and offered.
type status struct {
	phase atomic.Uint32
	// conflicts, at most one on a link, are ordered by link.
	conflicts atomic.Pointer[[]Conflict]
	// announced: the first announcement to all neighbours has left, on every link.
	announced atomic.Bool
}

// Conflict is a machine that has one of our addresses too: a foreign one that claims it, or any that answered for it. It represents all
// that claim the same address on its link, until it has been silent for conflictAge.
type Conflict struct {
	MAC link.MAC
	// Link on which it was seen, by name.
	Link string
	// phase of the address on that link: conflicting or Probing if the machine was first, Ours if it came later.
	phase Phase
	// Seen is when this machine was last seen.
	Seen time.Time
	// Since and Last are when any claimant was first and last seen.
	Since, Last time.Time
}

var noConflicts []Conflict

func newStatus(p Phase) *status {
	s := &status{}
	s.phase.Store(uint32(p))
	s.conflicts.Store(&noConflicts)
	return s
}

// successor returns a new status of the same address, which stays silent where another machine was first.
func (s *status) successor(p Phase) *status {
	out := newStatus(p)
	first := slices.DeleteFunc(slices.Clone(*s.conflicts.Load()), func(c Conflict) bool { return c.phase == Ours })
	out.conflicts.Store(&first)
	return out
}

func (s *status) is() Phase { return Phase(s.phase.Load()) }

// on returns the phase on a link.
func (s *status) on(linkName string) Phase {
	p := s.is()
	c, found := s.conflict(linkName)
	switch {
	case !found || c.phase == Ours:
		return p
	case p == Probing || p == Ours:
		return c.phase
	}
	return gone
}

// conflict returns the conflict on a link.
func (s *status) conflict(linkName string) (c Conflict, found bool) {
	for _, c := range *s.conflicts.Load() {
		if c.Link == linkName {
			return c, true
		}
	}
	return Conflict{}, false
}

// setConflict replaces the conflict on a link by these.
func (s *status) setConflict(linkName string, by ...Conflict) {
	all := append(slices.DeleteFunc(slices.Clone(*s.conflicts.Load()), func(c Conflict) bool { return c.Link == linkName }), by...)
	slices.SortFunc(all, func(a, b Conflict) int { return strings.Compare(a.Link, b.Link) })
	s.conflicts.Store(&all)
}

// become changes the phase from from to to, and reports whether it was from.
func (s *status) become(from, to Phase) bool {
	return s.phase.CompareAndSwap(uint32(from), uint32(to))
}
