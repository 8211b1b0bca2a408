package heartbeat

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

func boottime() time.Duration { return rt.Boottime() }

// monotonic is the clock of the Lease, the same in every process. It does not count suspension, which the thread notices
// with its next heartbeat.
func monotonic() time.Duration { return rt.Clock(unix.CLOCK_MONOTONIC) }

// Lease says whether this node may still act on its last plan. It is safe for concurrent use, and takes no lock. The heartbeat
// process writes it, except confirmed.
type Lease struct {
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
	return epoch == confirmed && epoch != 0 && monotonic() < deadline
}

// renew lets the lease hold until a time of its clock. Only the heartbeat's thread calls it.
func (l *Lease) renew(epoch uint64, until time.Duration) {
	l.epoch.Store(epoch)
	l.deadline.Store(int64(until))
}
