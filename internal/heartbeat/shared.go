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

// shared is memory that the speaker's process and the heartbeat process both map: one of them writes a value,
// the other one reads it, and neither waits.
type shared struct {
	lease Lease
	counters
	// keepalive is the boottime at which the speaker's process last showed that it runs.
	keepalive atomic.Int64
	// realtime: the heartbeat process has real-time priority.
	realtime atomic.Bool
	// hearsSome: this node hears another speaker well.
	hearsSome atomic.Bool
}

// speakerHangs: the speaker's process did not run for so long that it does not serve, and other nodes should.
func (s *shared) speakerHangs() bool {
	return boottime()-time.Duration(s.keepalive.Load()) > detect.SpeakerDownTime
}

// newShared returns memory that another process can map, and its file.
func newShared() (*shared, *os.File, error) {
	fd, err := unix.MemfdCreate("holdfast-heartbeat", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("create shared memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "shared memory")
	if err := f.Truncate(int64(unsafe.Sizeof(shared{}))); err != nil {
		return nil, nil, fmt.Errorf("size shared memory: %w", err)
	}
	s, err := mapShared(f)
	return s, f, err
}

// mapShared maps what newShared made. It stays mapped, since a Lease may be used as long as the process lives.
func mapShared(f *os.File) (*shared, error) {
	b, err := unix.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(shared{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map shared memory: %w", err)
	}
	return (*shared)(unsafe.Pointer(unsafe.SliceData(b))), nil
}

func boottime() time.Duration { return rt.Boottime() }

// monotonic is the clock of the Lease, the same in every process. It does not count suspension, which the thread
// notices with its next heartbeat.
func monotonic() time.Duration { return rt.Clock(unix.CLOCK_MONOTONIC) }

// Lease says whether this node may still act on its last plan. It is safe for concurrent use, and takes no lock. The
// heartbeat process writes it, except confirmed.
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
