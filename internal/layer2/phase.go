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
	// probing: the address is new, and this node asks whether another machine has it. It does not answer yet
	// (RFC 5227 section 2.1.1, RFC 4862 section 5.4).
	probing phase = iota
	// conflicting, only on a link: a foreign machine there has the address. This node does not answer there, and probes
	// again periodically.
	conflicting
	// owned: this node answers and announces.
	owned
	// standingIn: this node answers for the owner (stand-in), and does not announce.
	standingIn
	// handingOver: another node owns the address, and this node answers until it hears that node.
	handingOver
	// offered: no plan comes, so another node should own the address. This node answers until it hears one.
	offered
	// released: the new owner was heard, or was not heard within lingerTime.
	released

	phases
)

// String returns the word for the state page.
func (p phase) String() string {
	return [phases]string{
		probing:     "probing",
		conflicting: "conflicting",
		owned:       "announced",
		standingIn:  "standing in",
		handingOver: "handing over",
		offered:     "offered to others",
		released:    "gone",
	}[p]
}

// answers reports whether a question is answered in this phase.
func (p phase) answers() bool {
	return p == owned ||
		p == standingIn ||
		p == handingOver ||
		p == offered
}

// status is the changing state of an address while it is set. Set, Offer and the goroutine
// of Run change it; readers of ports and Owned end the phases handingOver and offered.
type status struct {
	phase atomic.Uint32
	// conflicts, at most one on a link, are ordered by link.
	conflicts atomic.Pointer[[]linkConflict]
	// releasedAt is the time at which this node released the address last, zero if it counts as new. Within reclaimTime
	// it is probed once, without a wait: a machine that took it meanwhile answers within lateAnswerTime.
	releasedAt time.Time
	// isAnnounced reports whether the first announcement to all neighbours was sent, on every link.
	isAnnounced atomic.Bool
}

// linkConflict is a conflict on a link, with the phase of the address there: conflicting or probing if the machine had
// the address first, owned if this node had.
type linkConflict struct {
	lb.Conflict
	phase phase
}

var noConflicts []linkConflict

// newStatus returns a status in a phase, without conflicts.
func newStatus(p phase) *status {
	s := &status{}
	s.phase.Store(uint32(p))
	s.conflicts.Store(&noConflicts)
	return s
}

// successor returns a new status of the same address, which stays silent on links where another machine had it first.
func (s *status) successor(p phase) *status {
	next := newStatus(p)
	isOwned := func(c linkConflict) bool { return c.phase == owned }
	lost := slices.DeleteFunc(slices.Clone(*s.conflicts.Load()), isOwned)
	next.conflicts.Store(&lost)
	return next
}

// current returns the present phase.
func (s *status) current() phase {
	return phase(s.phase.Load())
}

// isReclaimed reports whether this node gets the address back soon after it released it, without a conflict.
func (s *status) isReclaimed(at time.Time) bool {
	return at.Sub(s.releasedAt) < reclaimTime && len(*s.conflicts.Load()) == 0
}

// phaseOn returns the phase on a link.
func (s *status) phaseOn(linkName string) phase {
	p := s.current()
	c, found := s.conflict(linkName)
	if !found || c.phase == owned {
		return p
	}

	if p == probing || p == owned {
		return c.phase
	}

	return released
}

// conflict returns the conflict on a link.
func (s *status) conflict(linkName string) (c linkConflict, found bool) {
	for _, c := range *s.conflicts.Load() {
		if c.Link == linkName {
			return c, true
		}
	}

	return linkConflict{}, false
}

// setConflict replaces the conflict on a link, or removes it if there is no new one.
func (s *status) setConflict(linkName string, replacement ...linkConflict) {
	isOnLink := func(c linkConflict) bool { return c.Link == linkName }
	all := slices.DeleteFunc(slices.Clone(*s.conflicts.Load()), isOnLink)
	all = append(all, replacement...)
	slices.SortFunc(all, func(a, b linkConflict) int { return strings.Compare(a.Link, b.Link) })
	s.conflicts.Store(&all)
}

// transition changes the phase if it is from, and reports whether it was.
func (s *status) transition(from, to phase) bool {
	return s.phase.CompareAndSwap(uint32(from), uint32(to))
}
