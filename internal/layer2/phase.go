package layer2

import (
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/link"
)

// phase is how far an address has come that was set.
type phase uint32

const (
	// probing: it is new, and is asked for; nobody gets an answer yet (RFC 5227
	// section 2.1.1, RFC 4862 section 5.4).
	probing phase = iota
	// conflicting: somebody else has it. It is not answered, and probed again now and then.
	conflicting
	// ours: it is answered and announced.
	ours
	// standing: it is answered in the stead of its owner, and not announced.
	standing
	// handing: another node is to announce it, and until that one is heard it is answered.
	handing
	// gone: the other node was heard.
	gone

	phases
)

// String returns the word for the state page.
func (p phase) String() string {
	return [phases]string{
		probing: "probing", conflicting: "conflicting", ours: "announced",
		standing: "standing in", handing: "handing over", gone: "gone",
	}[p]
}

// answers reports whether a question is answered in this phase.
func (p phase) answers() bool { return p == ours || p == standing || p == handing }

// status is what changes of an address while it is set. Set and the goroutine of
// Run change it; readers of ports end handing.
type status struct {
	phase    atomic.Uint32
	conflict atomic.Pointer[Conflict]
}

// Conflict is a machine that is not ours and says that it has an address of ours.
// One stands for all that claim the same address, until it has been silent for conflictAge.
type Conflict struct {
	MAC link.MAC
	// Link it was seen on, by name.
	Link string
	// Seen is when this machine was seen last.
	Seen time.Time
	// Since and Last are when any was seen first and last, Defended when we answered last.
	Since, Last, Defended time.Time
}

func newStatus(p phase) *status {
	s := &status{}
	s.phase.Store(uint32(p))
	return s
}

func (s *status) is() phase { return phase(s.phase.Load()) }

// become reports whether the phase was from, and makes it to.
func (s *status) become(from, to phase) bool {
	return s.phase.CompareAndSwap(uint32(from), uint32(to))
}
