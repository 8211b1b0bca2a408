package bgp

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// pulse notices that an engine hangs. It counts the time that the engine had for an answer: where its threads wait for
// a core, or this process does, an engine is slow and does not hang.
type pulse struct {
	spent, delay time.Duration
}

// hangTime is how long an engine may need for an answer.
const hangTime = 10 * time.Second

// look is called each lookInterval with how long the engine's threads have waited for a core in all. It reports whether the
// engine hangs.
func (p *pulse) look(delay time.Duration) bool {
	// A thread that ended takes its share of the sum with it.
	waited := min(max(delay-p.delay, 0), lookInterval)
	p.delay = delay
	p.spent += lookInterval - waited
	return p.spent >= hangTime
}

func (p *pulse) answered() { p.spent = 0 }

// waited returns how long the threads of a process were ready to run and did not, in all (Linux's
// Documentation/scheduler/sched-stats.rst); 0 if the kernel does not count it.
func waited(pid int) (all time.Duration) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is well-formed
	for _, path := range threads {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it ended
		}
		var ran, ready time.Duration
		if _, err := fmt.Sscan(string(b), &ran, &ready); err == nil {
			all += ready
		}
	}
	return all
}
