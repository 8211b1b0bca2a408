package layer2

import "sync/atomic"

// Lease says whether the last plan may still be acted on. While it is not valid,
// ARP and NDP replies and announcements are suspended: the others may have declared this
// node dead while the process was stopped, and it does not know that when it resumes. A
// lapsed lease must not become valid before Set is called with a later plan.
type Lease interface{ Valid() bool }

// States of a lapse: whether Set has seen it already.
const (
	noLapse uint32 = iota
	lapseSeen
	lapseHandled
)

// leased is a Lease that remembers its lapses.
type leased struct {
	// lease is nil if always valid.
	lease Lease
	lapse atomic.Uint32
}

// valid checks the lease. It is called before each answer.
func (l *leased) valid() bool {
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

// lapsed reports each lapse once.
func (l *leased) lapsed() bool {
	valid := l.valid()
	if valid {
		return l.lapse.CompareAndSwap(lapseSeen, noLapse)
	}
	return l.lapse.CompareAndSwap(lapseSeen, lapseHandled)
}
