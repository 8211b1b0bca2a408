package nstest

import (
	"time"
	"unsafe"
)

// clock is a time.Time: the flag that it has a monotonic reading, seconds since
// 1885 and nanoseconds in one word, and the reading in the other.
type clock struct {
	wall uint64
	ext  int64
	loc  *time.Location
}

const (
	hasMonotonic  = 1 << 63
	nanosecondLen = 30
)

// SetClock returns what time.Now would have returned in the moment of t if the wall clock had been
// set on, or back, by whole seconds before: another date with the same
// monotonic reading. It panics if t has none.
func SetClock(t time.Time, by time.Duration) time.Time {
	c := (*clock)(unsafe.Pointer(&t))
	if c.wall&hasMonotonic == 0 {
		panic("a time without a monotonic reading cannot tell that the clock was set")
	}
	c.wall += uint64(int64(by/time.Second) << nanosecondLen)
	return t
}
