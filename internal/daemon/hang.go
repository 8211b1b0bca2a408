package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// HangTimer measures how long an operation has had the chance to run. Time in which its threads wait for a core does
// not count, nor does time in which the watching process itself does not run: then the operation is slow, but it does
// not hang.
//
//	var timer HangTimer
//	for range time.Tick(interval) {
//		if timer.Advance(interval, SchedDelay(pid)) >= limit {
//			// The operation hangs.
//		}
//	}
type HangTimer struct {
	elapsed time.Duration
	// schedDelay is the total at the last call of Advance.
	schedDelay time.Duration
}

// Advance adds one interval, less the time that the threads waited for a core meanwhile. schedDelay is the total of
// SchedDelay. Advance returns the time since the start, or since the last Reset.
func (t *HangTimer) Advance(interval, schedDelay time.Duration) time.Duration {
	// The total falls when a thread ends.
	waited := max(schedDelay-t.schedDelay, 0)
	t.schedDelay = schedDelay

	t.elapsed += interval - min(waited, interval)
	return t.elapsed
}

// Reset starts the measurement of the next operation.
func (t *HangTimer) Reset() { t.elapsed = 0 }

// SchedDelay returns the total time that the threads of a process have waited for a core (Linux's
// Documentation/scheduler/sched-stats.rst). It returns 0 if the kernel does not count this.
func SchedDelay(pid int) time.Duration {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is well-formed

	var total time.Duration
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the thread ended
		}

		var running, waiting time.Duration
		if _, err := fmt.Sscan(string(text), &running, &waiting); err == nil {
			total += waiting
		}
	}
	return total
}
