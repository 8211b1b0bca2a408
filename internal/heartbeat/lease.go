package heartbeat

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// boottime is the time since boot, suspension included; setting the wall clock does not change it.
func boottime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("no CLOCK_BOOTTIME: " + err.Error()) // since Linux 2.6.39
	}
	return time.Duration(t.Nano())
}

// Lease says whether this node may still do what its last plan said. The zero
// Lease is not valid. It is safe for concurrent use, and asking takes no lock.
type Lease struct {
	// deadline is until when nobody can have called this node dead for its silence.
	deadline atomic.Int64
	// epoch counts how often that happened; a plan made in an epoch is confirmed for it.
	epoch, confirmed atomic.Uint64
	// now is monotonic and cheap, for it is asked with every answer. It does not count
	// suspension, which the thread notices with its next beat.
	now func() time.Duration
}

// Valid reports whether the lease holds at this moment.
func (l *Lease) Valid() bool {
	// In this order: renew writes the epoch before the deadline, and a thread that is frozen
	// anywhere before the last line wakes with a clock that has gone on.
	deadline := time.Duration(l.deadline.Load())
	epoch, confirmed := l.epoch.Load(), l.confirmed.Load()
	return epoch == confirmed && epoch != 0 && l.now() < deadline
}

// renew lets the lease hold until a time of its clock; the heartbeat's thread alone calls it.
func (l *Lease) renew(epoch uint64, until time.Duration) {
	l.epoch.Store(epoch)
	l.deadline.Store(int64(until))
}

// confirm lets the lease hold in the epoch.
func (l *Lease) confirm(epoch uint64) { l.confirmed.Store(epoch) }
