package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Pulse notices that something hangs. It counts the time that threads had for it: where they wait for a core, or the
// process that looks does not run, something is slow and does not hang.
type Pulse struct {
	spent, delay time.Duration
}

// Look is called at each interval with how long the threads have waited for a core in all. It returns how long they had
// for what is going on.
func (p *Pulse) Look(interval, delay time.Duration) time.Duration {
	// A thread that ended takes its share of the sum with it.
	waited := min(max(delay-p.delay, 0), interval)
	p.delay = delay
	p.spent += interval - waited
	return p.spent
}

// Answered says that something else begins.
func (p *Pulse) Answered() { p.spent = 0 }

// Waited returns how long the threads of a process were ready to run and did not, in all (Linux's
// Documentation/scheduler/sched-stats.rst); 0 if the kernel does not count it.
func Waited(pid int) (all time.Duration) {
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
