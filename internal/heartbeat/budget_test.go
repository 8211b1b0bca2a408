package heartbeat

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/rt"
	"golang.org/x/sys/unix"
)

// faultEnv is the directory where files named after a fault have the heartbeat process get it.
const faultEnv = "HOLDFAST_HEARTBEAT_FAULT"

// faults of a whole process with real-time priority.
var faults = map[string]func(){
	// A loop in Go: the runtime works.
	"loop": loop,
	// As many threads that nothing interrupts as may run Go code, so that no goroutine runs any more:
	// the runtime itself gone mad.
	"runtime": func() {
		for range maxThreads - 1 {
			go spin()
		}
		spin()
	},
	// One such thread: goroutines run until the first collection of garbage, or dump of stacks.
	"thread": func() { spin() },
	// Never for long on end, and most of the time, until that costs it its priority.
	"share": func() {
		runtime.LockOSThread()
		for {
			if a, err := unix.SchedGetAttr(0, 0); err != nil || a.Policy == unix.SCHED_NORMAL {
				return
			}
			for began := boottime(); boottime()-began < 20*ms; {
			}
			d := unix.NsecToTimespec(int64(5 * ms))
			_ = unix.Nanosleep(&d, nil)
		}
	},
}

// spin takes a core, and no signal but SIGKILL.
func spin() {
	runtime.LockOSThread()
	all := unix.Sigset_t{}
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &all, nil); err != nil {
		panic(err)
	}
	loop()
}

func loop() {
	for n := 0; ; n++ {
		runtime.KeepAlive(n)
	}
}

// awaitFaults begins those that are asked for, each once however often the process is started again.
func awaitFaults(dir string) {
	for range time.Tick(5 * time.Millisecond) {
		for name, fault := range faults {
			if os.Remove(filepath.Join(dir, name)) == nil {
				go fault()
			}
		}
	}
}

// log is what a speaker logs.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// realtimeThreads counts the threads of a process with real-time priority, 0 where there is no process.
func realtimeThreads(t *testing.T, process int) int {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", process))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	n := 0
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		must(t, err)
		if a, err := unix.SchedGetAttr(id, 0); err == nil && a.Policy != unix.SCHED_NORMAL {
			n++
		}
	}
	return n
}

// needRealtime skips tests that need real-time priority, and so /proc: they are not in namespaces of their own.
func needRealtime(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if os.Getuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_RR, Priority: realtimePriority}, 0); err != nil {
		t.Skipf("no real-time priority here: %v", err)
	}
	must(t, unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_NORMAL}, 0))
}

// program is an ordinary program that wants all of each core, with how long it did not run and how long it did.
type program struct {
	ran, longest []atomic.Int64
}

func newProgram(t *testing.T) *program {
	cores := runtime.NumCPU()
	p := &program{make([]atomic.Int64, cores), make([]atomic.Int64, cores)}
	for core := range cores {
		go func() {
			runtime.LockOSThread() // and never unlocked: it ends pinned
			var set unix.CPUSet
			set.Set(core)
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				t.Error(err)
				return
			}
			for last := boottime(); t.Context().Err() == nil; {
				at := boottime()
				p.longest[core].Store(max(p.longest[core].Load(), int64(at-last)))
				p.ran[core].Store(int64(rt.Clock(unix.CLOCK_THREAD_CPUTIME_ID)))
				last = at
			}
		}()
	}
	return p
}

// shortest is how long it ran on the core where it ran least.
func (p *program) shortest() time.Duration {
	shortest := time.Duration(p.ran[0].Load())
	for core := range p.ran {
		shortest = min(shortest, time.Duration(p.ran[core].Load()))
	}
	return shortest
}

// pause is the longest that it did not run, on either core.
func (p *program) pause() (longest time.Duration) {
	for core := range p.longest {
		longest = max(longest, time.Duration(p.longest[core].Load()))
	}
	return longest
}

func (p *program) String() string {
	var out []string
	for core := range p.ran {
		out = append(out, fmt.Sprintf("core %d: ran for %v, longest pause %v", core,
			time.Duration(p.ran[core].Load()).Round(ms), time.Duration(p.longest[core].Load()).Round(ms)))
	}
	return strings.Join(out, "; ")
}

// Whatever the heartbeat process does with its real-time priority, it loses it or ends within about
// a second, the speaker logs it, and heartbeats begin again; and all the while ordinary programs run.
func TestRunaway(t *testing.T) {
	needRealtime(t)
	const slack = 2 * time.Second // for the test itself, which has a small share of a core meanwhile
	for _, c := range []struct {
		fault  string
		within time.Duration
		says   []string
		// restarts: the process does not outlive it.
		restarts bool
	}{
		{"loop", softLimit, []string{"a thread ran for", "budget_test.go"}, false},
		{"share", 3 * budgetWindow, []string{"twice in a row"}, false},
		{"runtime", hardLimit, []string{"started again"}, true},
		{"thread", hardLimit, []string{"a thread ran for", "no heartbeats are sent", "started again"}, true},
	} {
		t.Run(c.fault, func(t *testing.T) {
			dir, log := t.TempDir(), &log{}
			s := clusterWith(t, speaker{env: []string{faultEnv + "=" + dir}, log: log}, 2, "192.0.2.%d")
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(log)
				}
			})
			ready(t, s)
			before := s[0].await(t, "it may act", func(l line) bool { return l.View.Settled && l.Child != 0 && l.View.Realtime })
			if realtimeThreads(t, before.Child) == 0 {
				t.Fatal("no thread has real-time priority")
			}
			p := newProgram(t)
			began := boottime()
			must(t, os.WriteFile(filepath.Join(dir, c.fault), nil, 0o600))
			nstest.Until(t, within, "the fault has begun", func() bool {
				_, err := os.Stat(filepath.Join(dir, c.fault))
				return errors.Is(err, fs.ErrNotExist)
			})
			nstest.Until(t, within, "the process has lost its priority, or ended", func() bool {
				return realtimeThreads(t, before.Child) == 0
			})
			took := boottime() - began
			ran := p.shortest()
			nstest.Until(t, within, "an ordinary program runs on each core", func() bool { return p.shortest() > ran+100*ms })
			t.Logf("ordinary or gone after %v; an ordinary program since: %v", took, p)
			if took > c.within+slack {
				t.Errorf("it had real-time priority for %v after that", took)
			}
			for _, says := range c.says {
				nstest.Until(t, within, "the speaker logs: "+says, func() bool { return strings.Contains(log.String(), says) })
			}
			after := s[0].await(t, "it sends heartbeats", func(l line) bool {
				return l.View.Settled && l.At > began && sees(s[1], detect.Alive)(l) &&
					(l.Overruns > 0 || c.restarts) && (!c.restarts || l.Child != 0 && l.Child != before.Child)
			})
			if want := map[bool]uint64{true: 1}[c.restarts]; after.Restarts != want {
				t.Errorf("%d restarts are counted, want %d", after.Restarts, want)
			}
			if c.fault != "runtime" && after.Overruns != 1 {
				t.Errorf("%d overruns are counted, want 1", after.Overruns)
			}
			t.Logf("it sent heartbeats, settled, after %v; epoch %d and then %d, up to %v late", after.At-began,
				before.View.Epoch, after.View.Epoch, after.Latest)
			s[1].await(t, "it is heard", func(l line) bool {
				return sees(s[0], detect.Alive)(l) || sees(s[0], detect.HoldDown)(l)
			})
		})
	}
}

// When it takes no more than it may it has real-time priority again.
func TestRealtimeAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as a process is without: ", minCooldown)
	}
	needRealtime(t)
	dir := t.TempDir()
	s := clusterWith(t, speaker{env: []string{faultEnv + "=" + dir}}, 2, "192.0.2.%d")
	ready(t, s)
	s[0].await(t, "it has real-time priority", func(l line) bool { return l.View.Realtime && l.Child != 0 })
	must(t, os.WriteFile(filepath.Join(dir, "share"), nil, 0o600))
	lost := s[0].await(t, "it lost that", func(l line) bool { return !l.View.Realtime })
	again := s[0].await(t, "it has it again", func(l line) bool { return l.View.Realtime })
	if took := again.At - lost.At; took < minCooldown-time.Second {
		t.Errorf("it had it again after %v", took)
	}
	// Other programs may have kept it from running meanwhile.
	if again.Child != lost.Child || again.Restarts != lost.Restarts {
		t.Errorf("process %d became %d, after %d restarts", lost.Child, again.Child, again.Restarts-lost.Restarts)
	}
	if realtimeThreads(t, again.Child) == 0 {
		t.Error("no thread has it")
	}
}

// A process that is killed early in its life goes without real-time priority for a while.
func TestKilledEarly(t *testing.T) {
	needRealtime(t)
	s := cluster(t, 2, "192.0.2.%d")
	ready(t, s)
	killed := s[0].await(t, "it runs", func(l line) bool {
		return l.Child != 0 && l.View.Settled && l.View.Realtime
	}).Child
	must(t, syscall.Kill(killed, syscall.SIGKILL))
	l := s[0].await(t, "it runs again", func(l line) bool { return l.Child != 0 && l.Child != killed && l.View.Settled })
	if l.View.Realtime {
		t.Error("it has real-time priority at once")
	}
}

// Each time a process goes without real-time priority for longer, up to a bound.
func TestFurther(t *testing.T) {
	var got time.Duration
	for i, want := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		if got = nextCooldown(got); got != want*time.Second {
			t.Errorf("cooldown %d is %v, want %v", i+1, got, want*time.Second)
		}
	}
}

// newTestThread returns a thread that the test drives.
func newTestThread(t *testing.T, self Peer, peers []Peer, timers detect.Timers) *beatThread {
	t.Helper()
	th, err := newBeatThread(processSettings{NodeName: self.Name, Address: self.Address, Port: testPort,
		Timers: timers.WithDefaults()}, &sharedState{}, nil)
	must(t, err)
	t.Cleanup(th.sockets.close)
	th.enqueue(order{Peers: peers, Keys: [][]byte{testKey}})
	return th
}

// steady is a thread that the test drives, with n peers in its own process that do not answer it but
// have their packets read by it.
func steady(t *testing.T, n int) (step func()) {
	t.Helper()
	var peers []Peer
	for i := range n {
		peers = append(peers, Peer{
			Name: fmt.Sprintf("node%d", i), Address: netip.MustParseAddr(fmt.Sprintf("127.0.0.%d", i+1)), Gossip: true,
		})
	}
	var threads []*beatThread
	for _, p := range peers {
		threads = append(threads, newTestThread(t, p, peers, detect.Timers{Interval: time.Microsecond, Multiplier: 1000}))
	}
	step = func() {
		for _, th := range threads {
			th.step()
			th.accountCPU()
			th.wait(0, true)
		}
	}
	for range 1000 {
		step()
	}
	return step
}

// Each second heartbeat allocates the Members of a View to compare with the last; nothing that is sent or read does. So
// the limit where garbage is collected is hours away in a small cluster.
func TestStepAllocates(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		step := steady(t, 4)
		if n := testing.AllocsPerRun(1000, step); n > 4 {
			t.Errorf("a heartbeat of 4 nodes allocates %v times, want 4 at most", n)
		}
	})
}
