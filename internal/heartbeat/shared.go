package heartbeat

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// sharedState is memory that the speaker's process and the heartbeat process both map. One of them writes a value and
// the other reads it; neither waits.
type sharedState struct {
	lease Lease
	counters
	// keepalive is the boottime at which the speaker's process last showed that it runs.
	keepalive atomic.Int64
	// realtime reports whether the heartbeat process has real-time priority.
	realtime atomic.Bool
	// hearsSome reports whether this node hears another speaker well.
	hearsSome atomic.Bool
}

// isSpeakerHanging reports whether the speaker's process did not run for so long that it does not serve, and other
// nodes should.
func (s *sharedState) isSpeakerHanging() bool {
	return boottime()-time.Duration(s.keepalive.Load()) > detect.SpeakerDownTime
}

// newSharedState returns memory that another process can map, and its file.
func newSharedState() (*sharedState, *os.File, error) {
	fd, err := unix.MemfdCreate("holdfast-heartbeat", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("create shared memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "shared memory")
	if err := f.Truncate(int64(unsafe.Sizeof(sharedState{}))); err != nil {
		return nil, nil, fmt.Errorf("size shared memory: %w", err)
	}
	s, err := mapSharedState(f)

	return s, f, err
}

// mapSharedState maps the file of newSharedState. It is never unmapped, because a Lease may be used as long as the
// process lives.
func mapSharedState(f *os.File) (*sharedState, error) {
	size := int(unsafe.Sizeof(sharedState{}))
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map shared memory: %w", err)
	}

	return (*sharedState)(unsafe.Pointer(unsafe.SliceData(b))), nil
}

// boottime is the detector's clock.
func boottime() time.Duration { return rt.Boottime() }

// monotonic is the clock of the Lease, the same in every process. It does not count suspension, which the thread
// notices with its next heartbeat.
func monotonic() time.Duration { return rt.Clock(unix.CLOCK_MONOTONIC) }

// Lease reports whether this node may still act on its last plan. It is safe for concurrent use, and takes no lock.
// The heartbeat process writes it, except confirmed.
type Lease struct {
	// deadline is the time, by monotonic, until which no node can have declared this one dead for its silence.
	deadline atomic.Int64
	// epoch counts how often the deadline has passed. confirmed is the epoch that the last confirmed plan was made
	// in.
	epoch, confirmed atomic.Uint64
}

// Valid reports whether the lease is valid at this moment.
func (l *Lease) Valid() bool {
	// In this order: renew writes the epoch before the deadline, and a thread that is frozen anywhere before the last
	// line wakes with a clock that has gone on.
	deadline := time.Duration(l.deadline.Load())
	epoch, confirmed := l.epoch.Load(), l.confirmed.Load()

	return epoch == confirmed && epoch != 0 && monotonic() < deadline
}

// renew extends the lease to a time by monotonic. Only the heartbeat thread calls it.
func (l *Lease) renew(epoch uint64, until time.Duration) {
	l.epoch.Store(epoch)
	l.deadline.Store(int64(until))
}
