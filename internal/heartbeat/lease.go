package heartbeat

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

func boottime() time.Duration { return rt.Boottime() }

// monotonic is the clock that the runtime counts time by, the same in every process.
func monotonic() time.Duration { return rt.Clock(unix.CLOCK_MONOTONIC) }

// fastMonotonic returns monotonic without its system call. It is never early, and late by
// less than a millisecond.
func fastMonotonic() func() time.Duration {
	for {
		before := time.Now()
		at := monotonic()
		if time.Since(before) < time.Millisecond {
			return func() time.Duration { return at + time.Since(before) }
		}
	}
}

// Lease says whether this node may still act on its last plan. It is safe for
// concurrent use, and takes no lock.
type Lease struct {
	*leaseState
	// now is fastMonotonic, since every ARP and NDP answer needs it. It does not count suspension,
	// which the thread notices with its next heartbeat.
	now func() time.Duration
}

// leaseState is written by the heartbeat process, except confirmed, and may be read in another one.
type leaseState struct {
	// deadline is until when nobody can have declared this node dead for its silence, by monotonic.
	deadline atomic.Int64
	// epoch counts how often that time has passed; a plan made in an epoch is confirmed for it.
	epoch, confirmed atomic.Uint64
}

// Valid reports whether the lease holds at this moment.
func (l *Lease) Valid() bool {
	// In this order: renew writes the epoch before the deadline, and a thread that is frozen
	// anywhere before the last line wakes with a clock that has gone on.
	deadline := time.Duration(l.deadline.Load())
	epoch, confirmed := l.epoch.Load(), l.confirmed.Load()
	return epoch == confirmed && epoch != 0 && l.now() < deadline
}

// renew lets the lease hold until a time of its clock. Only the heartbeat's thread calls it.
func (l *leaseState) renew(epoch uint64, until time.Duration) {
	l.epoch.Store(epoch)
	l.deadline.Store(int64(until))
}

// confirm lets the lease hold in the epoch.
func (l *Lease) confirm(epoch uint64) { l.confirmed.Store(epoch) }
