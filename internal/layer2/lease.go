package layer2

import "sync/atomic"

// Lease reports whether the last plan may still be acted on. While it is not valid,
// ARP and NDP replies and announcements are suspended: the other nodes may have declared this
// node dead while the process was stopped, and it does not know that when it resumes. A
// lapsed lease must not become valid before Set is called with a later plan.
type Lease interface{ Valid() bool }

// States of a lapse: whether Set has handled it already.
const (
	noLapse uint32 = iota
	lapseSeen
	lapseHandled
)

// lapseTracker checks a Lease, and remembers its lapses.
type lapseTracker struct {
	// lease is nil if always valid.
	lease Lease
	lapse atomic.Uint32
}

// isValid checks the lease. It is called before each answer.
func (l *lapseTracker) isValid() bool {
	if l.lease == nil {
		return true
	}

	if !l.lease.Valid() {
		l.lapse.CompareAndSwap(noLapse, lapseSeen)
		return false
	}

	if l.lapse.Load() == lapseHandled {
		l.lapse.CompareAndSwap(lapseHandled, noLapse)
	}

	return true
}

// takeLapse reports whether the lease has lapsed since it last did so. It reports each lapse once.
func (l *lapseTracker) takeLapse() bool {
	if l.isValid() {
		return l.lapse.CompareAndSwap(lapseSeen, noLapse)
	}
	return l.lapse.CompareAndSwap(lapseSeen, lapseHandled)
}
