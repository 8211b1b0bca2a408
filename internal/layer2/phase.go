package layer2

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// phase is the progress of an address since it was set.
type phase uint32

const (
	// probing: it is new and we ask whether others have it; we do not answer yet
	// (RFC 5227 section 2.1.1, RFC 4862 section 5.4).
	probing phase = iota
	// conflicting, only on a link: a foreign machine there has it. We do not answer there, and probe again
	// periodically.
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
	phase atomic.Uint32
	// conflicts, at most one on a link, are ordered by link.
	conflicts atomic.Pointer[[]rival]
	// left is when it was taken from us. Within leftTime it is probed once, without a wait: who has it since then
	// answers in time (lateTime).
	left time.Time
	// announced: the first announcement to all neighbours has left, on every link.
	announced atomic.Bool
}

// rival is a conflict with the phase of the address on that link: conflicting or probing if the machine was first, ours
// if it came later.
type rival struct {
	lb.Conflict
	phase phase
}

var noConflicts []rival

func newStatus(p phase) *status {
	s := &status{}
	s.phase.Store(uint32(p))
	s.conflicts.Store(&noConflicts)
	return s
}

// successor returns a new status of the same address, which stays silent where another machine was first.
func (s *status) successor(p phase) *status {
	out := newStatus(p)
	first := slices.DeleteFunc(slices.Clone(*s.conflicts.Load()), func(c rival) bool { return c.phase == ours })
	out.conflicts.Store(&first)
	return out
}

func (s *status) is() phase { return phase(s.phase.Load()) }

// on returns the phase on a link.
func (s *status) on(linkName string) phase {
	p := s.is()
	c, found := s.conflict(linkName)
	switch {
	case !found || c.phase == ours:
		return p
	case p == probing || p == ours:
		return c.phase
	}

	return gone
}

// conflict returns the conflict on a link.
func (s *status) conflict(linkName string) (c rival, found bool) {
	for _, c := range *s.conflicts.Load() {
		if c.Link == linkName {
			return c, true
		}
	}
	return rival{}, false
}

// setConflict replaces the conflict on a link by these.
func (s *status) setConflict(linkName string, by ...rival) {
	all := append(
		slices.DeleteFunc(slices.Clone(*s.conflicts.Load()), func(c rival) bool { return c.Link == linkName }),
		by...)
	slices.SortFunc(all, func(a, b rival) int { return strings.Compare(a.Link, b.Link) })
	s.conflicts.Store(&all)
}

// become changes the phase from from to to, and reports whether it was from.
func (s *status) become(from, to phase) bool {
	return s.phase.CompareAndSwap(uint32(from), uint32(to))
}
