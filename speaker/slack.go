package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"
)

const (
	// timerSlack is how late timers may be: far less than any time that this process waits for.
	timerSlack = 500 * time.Microsecond
	// monitorSlack is how late the monitor thread of the Go runtime may be. Without it the monitor runs 50 times at 20 us
	// each time that the process wakes, which costs 12 % of its CPU. The monitor preempts goroutines that run for more
	// than 10 ms, and retakes the core of a thread in a long system call.
	monitorSlack = 5 * time.Millisecond
	// slackInterval is how often the slack is set again: a thread inherits it from the thread that starts it, and the
	// monitor starts some (PR_SET_TIMERSLACK(2const)).
	slackInterval = 10 * time.Second
)

// slacken lets the timers of this process be late, and returns when to do so again. For other threads than the caller's
// it needs SYS_NICE, as real-time heartbeats do.
func slacken(context.Context) (again time.Duration, err error) {
	for i, thread := range threads() {
		slack := timerSlack
		if i == monitorThread {
			slack = monitorSlack
		}
		_ = os.WriteFile(
			fmt.Sprintf("/proc/%d/timerslack_ns", thread),
			strconv.AppendInt(nil, slack.Nanoseconds(), 10),
			0,
		)
	}
	return slackInterval, nil
}

// monitorThread is the index of the runtime's monitor in the result of threads: the runtime starts it first.
const monitorThread = 1

// threads returns the threads of this process, the oldest first. The kernel numbers threads in rising order, and starts
// again after its highest number.
func threads() (out []int) {
	entries, _ := os.ReadDir("/proc/self/task")
	for _, e := range entries {
		if thread, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, thread)
		}
	}
	slices.SortFunc(out, func(a, b int) int { return cmp.Compare(uint32(a-os.Getpid()), uint32(b-os.Getpid())) })
	return out
}
