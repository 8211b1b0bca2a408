package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The runtime's monitor looks all the time at what computes; no other thread waits so often.
func TestMonitorThread(t *testing.T) {
	before := waits(t)
	for start := time.Now(); time.Since(start) < 200*time.Millisecond; {
	}
	after, monitor := waits(t), threads()[monitorThread]
	often := func(thread int) int { return after[thread] - before[thread] }
	for _, thread := range threads() {
		if thread != monitor && often(thread) >= often(monitor) {
			t.Errorf("thread %d waited %d times, %d, which should be the monitor, %d times", thread, often(thread),
				monitor, often(monitor))
		}
	}
}

// The monitor may be late, other threads less so. To set that needs SYS_NICE.
func TestSlacken(t *testing.T) {
	t.Cleanup(func() {
		for _, thread := range threads() {
			// the kernel's default: other tests' timers
			_ = os.WriteFile(fmt.Sprintf("/proc/%d/timerslack_ns", thread), []byte("50000"), 0)
		}
	})
	_, err := slacken(t.Context())
	must(t, err)
	for i, thread := range threads()[:2] {
		want := []time.Duration{timerSlack, monitorSlack}[i]
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", thread))
		if errors.Is(err, os.ErrPermission) {
			t.Skip(err)
		}
		if got := strings.TrimSpace(string(text)); got != fmt.Sprint(want.Nanoseconds()) {
			t.Errorf("timers of thread %d may be %s ns late (%v), want %v", thread, got, err, want)
		}
	}
}

// waits returns how often each thread has waited.
func waits(t *testing.T) map[int]int {
	t.Helper()
	out := map[int]int{}
	for _, thread := range threads() {
		status, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", thread))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it ended
		}
		must(t, err)
		n, err := strconv.Atoi(string(regexp.MustCompile(`(?m)^voluntary_ctxt_switches:\s(\d+)`).FindSubmatch(status)[1]))
		must(t, err)
		out[thread] = n
	}
	return out
}
