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
	// timerSlack is how late timers may be: far below all that this process waits for.
	timerSlack = 500 * time.Microsecond
	// monitorSlack is how late the runtime's monitor may look: for 50 times 20 us after whatever wakes this process,
	// which took an eighth of its CPU. The monitor interrupts what computes for more than 10 ms, and at its second look
	// lends the core of a thread in a long system call to others.
	monitorSlack = 5 * time.Millisecond
	// slackEvery is how often it is set: a thread inherits it from the thread that starts it, and the monitor starts
	// some (PR_SET_TIMERSLACK(2const)).
	slackEvery = 10 * time.Second
)

// slacken lets the timers of this process be late. To do so for other threads needs SYS_NICE, as real-time heartbeats
// do.
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
	return slackEvery, nil
}

// monitorThread is the place of the runtime's monitor among the threads: it is the first that the runtime starts.
const monitorThread = 1

// threads returns the threads of this process, the oldest first: the kernel counts up, and begins again at its highest
// number.
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
