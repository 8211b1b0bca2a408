package heartbeat

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// shared is what the process of the beats writes and the speaker's reads, or the other
// way around, without either waiting for the other: both map the same memory.
type shared struct {
	lease leaseState
	counters
	// attended is the boottime at which the speaker's process last showed that it runs; 0 if
	// that is not asked for.
	keepalive atomic.Int64
	// realtime: the process of the beats has real-time priority.
	realtime atomic.Bool
}

// newShared returns memory that another process can map, and the file that it is.
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

// mapShared maps what newShared made. It stays mapped: a Lease may be asked as long as the process lives.
func mapShared(f *os.File) (*shared, error) {
	b, err := unix.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(shared{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map shared memory: %w", err)
	}
	return (*shared)(unsafe.Pointer(unsafe.SliceData(b))), nil
}
