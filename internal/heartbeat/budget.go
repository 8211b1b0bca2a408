package heartbeat

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// realtimePriority is the lowest real-time priority: before all ordinary threads, after all other real-time
	// threads.
	realtimePriority = 1
	// softLimit is how long a thread with real-time priority may run without a pause until the kernel sends SIGXCPU.
	// At hardLimit it sends SIGKILL, which needs no working runtime (getrlimit(2), RLIMIT_RTTIME).
	softLimit, hardLimit = 200 * time.Millisecond, 600 * time.Millisecond
	// A process that takes more than 1/budgetShare of a core in two windows in a row loses its priority: it may block
	// so often that no thread runs for long, and take a core all the same. It must be two windows, because the kernel
	// may count time as CPU time in which the machine's host did not run it, half a second once.
	budgetWindow = 500 * time.Millisecond
	budgetShare  = 4
	// minCooldown is how long the process goes without the priority. That doubles each time, until nothing happened
	// for forgetTime. A process that replaces another one begins likewise.
	minCooldown, maxCooldown = 10 * time.Second, 5 * time.Minute
	forgetTime               = 10 * time.Minute
	// memoryLimit is where the runtime begins to collect garbage. It uses some 8 MiB at the start.
	memoryLimit = 32 << 20
	maxStacks   = 64 << 10
)

// nextCooldown returns the cooldown after another one.
func nextCooldown(cooldown time.Duration) time.Duration {
	return min(max(2*cooldown, minCooldown), maxCooldown)
}

// cpuBudget limits the CPU time of a process with real-time priority, so that no fault of it keeps a node from
// running everything else.
type cpuBudget struct {
	shared *sharedState
	// ordinaryUntil is the boottime at which the process may have the priority again.
	ordinaryUntil atomic.Int64
	// cooldown is how long it last went without, and givenAt when it last got the priority.
	cooldown, givenAt atomic.Int64
	// overruns has the overrun of a window, for a goroutine that may wait.
	overruns chan overrun

	// windowBegan is when the present window began. exceeded reports whether the last one exceeded the budget.
	windowBegan time.Duration
	exceeded    bool
	// user and system are the CPU time taken before the window.
	user, system atomic.Int64
}

// newCPUBudget returns the budget of a process that first goes without real-time priority for cooldown.
func newCPUBudget(s *sharedState, cooldown time.Duration) *cpuBudget {
	b := &cpuBudget{shared: s, overruns: make(chan overrun, 1)}
	b.ordinaryUntil.Store(int64(boottime() + cooldown))

	return b
}

// begin gives the process real-time priority, within limits that the kernel enforces.
func (b *cpuBudget) begin() {
	// Each time: the kernel adds a second to the first limit with every signal.
	limit := unix.Rlimit{Cur: uint64(softLimit.Microseconds()), Max: uint64(hardLimit.Microseconds())}
	err := unix.Setrlimit(unix.RLIMIT_RTTIME, &limit)
	at := boottime()
	if err == nil {
		b.givenAt.Store(int64(at))
		b.shared.realtime.Store(true)
		err = setPolicy(unix.SCHED_RR, func() bool { return boottime() < time.Duration(b.ordinaryUntil.Load()) })
	}

	switch {
	case err != nil:
		b.ordinaryUntil.Store(math.MaxInt64) // not allowed to
	case at >= time.Duration(b.ordinaryUntil.Load()):
		return
	}
	// It failed, or end was called meanwhile.
	b.shared.realtime.Store(false)
	_ = setPolicy(unix.SCHED_NORMAL, neverStop)
}

// end takes real-time priority away. It is safe for concurrent use.
func (b *cpuBudget) end() {
	at := boottime()
	cooldown := nextCooldown(time.Duration(b.cooldown.Load()))
	if at-time.Duration(b.givenAt.Load()) > forgetTime {
		cooldown = minCooldown
	}

	b.ordinaryUntil.Store(int64(at + cooldown)) // first, so that begin does not take the priority again
	if b.shared.realtime.CompareAndSwap(true, false) {
		b.shared.overruns.Add(1)
		b.cooldown.Store(int64(cooldown))
	}
	_ = setPolicy(unix.SCHED_NORMAL, neverStop) // which needs no capability
}

// used returns the CPU time of the process in this window: in its own code, and in the kernel on its behalf and for
// interrupts that came while it ran.
func (b *cpuBudget) used() (user, system time.Duration) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(fmt.Sprintf("read the CPU time of this process: %v", err)) // fails for bad arguments only
	}

	return time.Duration(u.Utime.Nano() - b.user.Load()), time.Duration(u.Stime.Nano() - b.system.Load())
}

// account ends a window that is over, and takes or gives the priority by what was used. The heartbeat thread calls it
// several times in each window.
func (b *cpuBudget) account(at time.Duration) {
	passed := at - b.windowBegan
	if passed < budgetWindow {
		return
	}

	user, system := b.used()
	exceeded := user+system > passed/budgetShare
	realtime := b.shared.realtime.Load()
	switch {
	case realtime && exceeded && b.exceeded:
		b.end()
		why := fmt.Sprintf("more than %v in %v, twice in a row", budgetWindow/budgetShare, budgetWindow)
		select {
		case b.overruns <- b.overrun(why):
		default:
		}
	case !realtime && !exceeded && at >= time.Duration(b.ordinaryUntil.Load()):
		b.begin()
	}

	b.windowBegan, b.exceeded = at, exceeded
	b.user.Add(int64(user))
	b.system.Add(int64(system))
}

// overrun is reported when the budget was exceeded.
type overrun struct {
	Why string
	// Cooldown is how long the process goes without real-time priority.
	Cooldown time.Duration
	// User and System are the CPU time that it took since the window began.
	User, System time.Duration
	// Stacks are the stacks of all goroutines, if a thread ran without a pause.
	Stacks string `json:",omitempty"`
}

func (b *cpuBudget) overrun(why string) overrun {
	o := overrun{Why: why, Cooldown: time.Duration(b.ordinaryUntil.Load()) - boottime()}
	o.User, o.System = b.used()

	return o
}

// watch reports overruns, and takes the priority away when the kernel asks for that.
func (b *cpuBudget) watch(report func(overrun)) {
	exceeded := make(chan os.Signal, 1)
	signal.Notify(exceeded, unix.SIGXCPU)
	go func() {
		for {
			select {
			case o := <-b.overruns:
				report(o)
			case <-exceeded:
				b.end()
				o := b.overrun(fmt.Sprintf("a thread ran for %v without a pause", softLimit))
				report(o) // at once, since the stacks may never come: all goroutines must stop for them
				stacks := make([]byte, maxStacks)
				o.Stacks = string(stacks[:runtime.Stack(stacks, true)])
				report(o)
			}
		}
	}()
}

// collectGarbageRarely has the runtime collect garbage only when there is much. A collection needs other threads,
// which spin for each other. Heartbeats leave next to no garbage.
func collectGarbageRarely() {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
}

func neverStop() bool { return false }

// setPolicy gives every thread of the process a scheduling policy, which the threads that they start inherit, until
// stop returns true. A single thread with real-time priority would wait for the others: a garbage collection stops it
// until each of them has reached a safe point, for which the kernel has to run it, and after a system call it needs
// one of GOMAXPROCS, which ordinary threads keep while they wait for a core. The policy for real-time priority is
// SCHED_RR, because threads of SCHED_FIFO with the same priority, of other such processes too, never share a core
// (sched(7)).
func setPolicy(policy uint32, stop func() bool) error {
	for !stop() {
		changed, err := setPolicyOnce(policy)
		if err != nil || !changed {
			return err
		}
	}

	return nil
}

// setPolicyOnce gives the present threads a policy, and reports whether it changed any.
func setPolicyOnce(policy uint32) (changed bool, err error) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return false, err
	}
	own := strconv.Itoa(unix.Gettid())
	if !slices.ContainsFunc(threads, func(t os.DirEntry) bool { return t.Name() == own }) {
		return false, errors.New("/proc is of another PID namespace")
	}

	attributes := unix.SchedAttr{Policy: policy}
	if policy == unix.SCHED_RR {
		attributes.Priority = realtimePriority
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return changed, err
		}
		present, err := unix.SchedGetAttr(id, 0)
		if errors.Is(err, unix.ESRCH) || err == nil && present.Policy == policy {
			continue
		}
		err = unix.SchedSetAttr(id, &attributes, 0)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return changed, err
		}
		changed = true
	}

	return changed, nil
}

// TryRealtime gives a thread of this process real-time priority for a moment, as the heartbeat process does with all
// of its threads. It returns an error if that is not allowed.
func TryRealtime() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return fmt.Errorf("read the priority of a thread: %w", err)
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_RR, Priority: realtimePriority}, 0); err != nil {
		return fmt.Errorf("set real-time priority: %w", err)
	}

	err = unix.SchedSetAttr(0, before, 0) // needs no capability

	return os.NewSyscallError("reset the priority of a thread", err)
}
