package layer2

import "sync/atomic"

// Lease says whether what was set last may still be acted on. While it is not
// valid nothing is answered and nothing announced: a process that stood still has
// been given up by the others, and knows nothing of it when it goes on. A lease
// that lapsed must not become valid before Set was called with a plan made since.
type Lease interface{ Valid() bool }

// How a lapse of the lease is told from one that Set has seen already.
const (
	noLapse uint32 = iota
	lapseSeen
	lapseHandled
)

// leased is a Lease that remembers that it lapsed.
type leased struct {
	// lease is nil for one that is always valid.
	lease Lease
	lapse atomic.Uint32
}

// valid looks at the lease. It is called before each answer.
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

// lapsed reports, once for each lapse, that there was one.
func (l *leased) lapsed() bool {
	valid := l.valid()
	if valid {
		return l.lapse.CompareAndSwap(lapseSeen, noLapse)
	}
	return l.lapse.CompareAndSwap(lapseSeen, lapseHandled)
}
