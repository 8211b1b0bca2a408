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
	// realtimePriority is the lowest one: before all ordinary threads, after all other real-time ones.
	realtimePriority = 1
	// softLimit is how long one thread may run without a pause with real-time priority before the kernel sends
	// SIGXCPU. At hardLimit it sends SIGKILL, which needs no working runtime (getrlimit(2), RLIMIT_RTTIME).
	softLimit, hardLimit = 200 * time.Millisecond, 600 * time.Millisecond
	// A process that takes more than 1/part of a core in two windows in a row loses its priority: it may
	// block so often that no thread runs for long, and take a core all the same. Two, since the kernel may count
	// time in which the machine's host did not run it as CPU time, half a second once.
	window = 500 * time.Millisecond
	part   = 4
	// minCooldown is how long it goes without; that doubles each time, until it did not happen for forgetTime. A
	// process that ended begins likewise.
	minCooldown, maxCooldown = 10 * time.Second, 5 * time.Minute
	forgetTime               = 10 * time.Minute
	// memoryLimit is where the runtime begins to collect garbage; it uses some 8 MiB at the start.
	memoryLimit = 32 << 20
	maxStacks   = 64 << 10
)

// budget is how much CPU time a process with real-time priority may take: no fault of it may keep a
// node from running everything else.
type budget struct {
	shared *shared
	// until is when it may have the priority again.
	until atomic.Int64
	// cooldown is how long it went without the last time; given is when it got the priority last.
	cooldown, given atomic.Int64
	// over is for the goroutine that may wait: part was exceeded.
	over chan overrun

	// since is when the present window began; exceeded: part was exceeded in the last one.
	since    time.Duration
	exceeded bool
	// user and system are the CPU time taken before it began.
	user, system atomic.Int64
}

// further is the cooldown after one.
func further(cooldown time.Duration) time.Duration {
	return min(max(2*cooldown, minCooldown), maxCooldown)
}

// newBudget returns the budget of a process that goes without real-time priority for cooldown first.
func newBudget(s *shared, cooldown time.Duration) *budget {
	b := &budget{shared: s, over: make(chan overrun, 1)}
	b.until.Store(int64(boottime() + cooldown))
	return b
}

// begin gives the process real-time priority, within the limits that the kernel enforces.
func (b *budget) begin() {
	// Each time: the kernel adds a second to the first limit with every signal.
	limit := unix.Rlimit{Cur: uint64(softLimit.Microseconds()), Max: uint64(hardLimit.Microseconds())}
	err := unix.Setrlimit(unix.RLIMIT_RTTIME, &limit)
	now := boottime()
	if err == nil {
		b.given.Store(int64(now))
		b.shared.realtime.Store(true)
		err = everyThread(unix.SCHED_RR, func() bool { return boottime() < time.Duration(b.until.Load()) })
	}
	switch {
	case err != nil:
		b.until.Store(math.MaxInt64)
	case now >= time.Duration(b.until.Load()):
		return
	}
	b.shared.realtime.Store(false) // not allowed to, or end was called meanwhile
	_ = everyThread(unix.SCHED_NORMAL, never)
}

// end takes real-time priority away. It may be called by several threads at once.
func (b *budget) end() {
	now := boottime()
	cooldown := further(time.Duration(b.cooldown.Load()))
	if now-time.Duration(b.given.Load()) > forgetTime {
		cooldown = minCooldown
	}
	b.until.Store(int64(now + cooldown)) // first, so that begin does not take it again
	if b.shared.realtime.CompareAndSwap(true, false) {
		b.shared.overruns.Add(1)
		b.cooldown.Store(int64(cooldown))
	}
	_ = everyThread(unix.SCHED_NORMAL, never) // which needs no capability
}

// taken is the CPU time of the process in this window, in its own code and in the kernel: on its behalf, and for
// interrupts that came while it ran.
func (b *budget) taken() (user, system time.Duration) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(fmt.Sprintf("read the CPU time of this process: %v", err)) // fails for bad arguments only
	}
	return time.Duration(u.Utime.Nano() - b.user.Load()), time.Duration(u.Stime.Nano() - b.system.Load())
}

// account is called by the heartbeat thread, several times in each window.
func (b *budget) account(now time.Duration) {
	passed := now - b.since
	if passed < window {
		return
	}
	user, system := b.taken()
	exceeded := user+system > passed/part
	realtime := b.shared.realtime.Load()
	switch {
	case realtime && exceeded && b.exceeded:
		b.end()
		select {
		case b.over <- b.overrun(fmt.Sprintf("more than %v in %v, twice in a row", window/part, window)):
		default:
		}
	case !realtime && !exceeded && now >= time.Duration(b.until.Load()):
		b.begin()
	}
	b.since, b.exceeded = now, exceeded
	b.user.Add(int64(user))
	b.system.Add(int64(system))
}

// account keeps the process within its budget, and adapts the detector to its priority.
func (t *thread) account() {
	b := t.cpu
	if b == nil {
		return
	}
	b.account(boottime())
	if is := b.shared.realtime.Load(); is != t.realtime {
		t.realtime = is
		t.detector.SetRealtime(is)
	}
}

// overrun is reported when the budget was exceeded.
type overrun struct {
	Why string
	// Cooldown is how long the process goes without real-time priority.
	Cooldown time.Duration
	// User and System are the CPU time that it took since the window began.
	User, System time.Duration
	// Stacks of all goroutines, if one of them was at fault.
	Stacks string `json:",omitempty"`
}

// watch reports overruns, and gives the priority back when the kernel asks for it.
func (b *budget) watch(report func(overrun)) {
	exceeded := make(chan os.Signal, 1)
	signal.Notify(exceeded, unix.SIGXCPU)
	go func() {
		for {
			select {
			case o := <-b.over:
				report(o)
			case <-exceeded:
				b.end()
				o := b.overrun(fmt.Sprintf("a thread ran for %v without a pause", softLimit))
				report(o) // now, since the stacks may never come: all goroutines must stop for them
				stacks := make([]byte, maxStacks)
				o.Stacks = string(stacks[:runtime.Stack(stacks, true)])
				report(o)
			}
		}
	}()
}

func (b *budget) overrun(why string) overrun {
	o := overrun{Why: why, Cooldown: time.Duration(b.until.Load()) - boottime()}
	o.User, o.System = b.taken()
	return o
}

// collectRarely has the runtime collect garbage only when there is much: a collection needs other threads,
// which spin for each other. Heartbeats leave next to none.
func collectRarely() {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
}

func never() bool { return false }

// everyThread gives every thread of the process a policy, which the threads that they start inherit, until stop
// returns true. A single thread with real-time priority would wait for the others: a garbage collection stops it until
// each of them has reached a safe point, for which the kernel has to run it, and after a system call it needs one
// of GOMAXPROCS, which ordinary threads keep while they wait for a core. The policy is SCHED_RR, since threads of
// SCHED_FIFO with the same priority, of other such processes too, never share a core (sched(7)).
func everyThread(policy uint32, stop func() bool) error {
	var priority uint32
	if policy == unix.SCHED_RR {
		priority = realtimePriority
	}
	for !stop() {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		if own := strconv.Itoa(unix.Gettid()); !slices.ContainsFunc(
			threads,
			func(t os.DirEntry) bool { return t.Name() == own },
		) {
			return errors.New("/proc is of another PID namespace")
		}
		changed := false
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil {
				return err
			}
			is, err := unix.SchedGetAttr(id, 0)
			if errors.Is(err, unix.ESRCH) || err == nil && is.Policy == policy {
				continue
			}
			err = unix.SchedSetAttr(id, &unix.SchedAttr{Policy: policy, Priority: priority}, 0)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
			changed = true
		}
		if !changed {
			return nil
		}
	}
	return nil
}

// TryRealtime gives a thread of this process real-time priority for a moment, as the heartbeat process gives it to all
// of its own.
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
	return os.NewSyscallError("reset the priority of a thread", unix.SchedSetAttr(0, before, 0)) // needs no capability
}
