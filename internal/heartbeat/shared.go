package heartbeat

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
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
}

// speakerHangs: the speaker's process did not run for so long that it does not serve, and other nodes should.
func (s *shared) speakerHangs() bool {
	return boottime()-time.Duration(s.keepalive.Load()) > speakerDownTime
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
