package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"
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
			t.Errorf("thread %d waited %d times, %d, which should be the monitor, %d times", thread, often(thread), monitor, often(monitor))
		}
	}
}

// waits returns how often each thread has waited.
func waits(t *testing.T) map[int]int {
	t.Helper()
	out := map[int]int{}
	for _, thread := range threads() {
		status, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", thread))
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(string(regexp.MustCompile(`(?m)^voluntary_ctxt_switches:\s(\d+)`).FindSubmatch(status)[1]))
		if err != nil {
			t.Fatal(err)
		}
		out[thread] = n
	}
	return out
}
