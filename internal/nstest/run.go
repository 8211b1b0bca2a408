package nstest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childEnv marks the process that Run started.
const childEnv = "HOLDFAST_NSTEST"

// Run runs fn in a process with a fresh network namespace, whose loopback is up.
// fn must be the whole test: code around the call runs in both processes. Run
// skips the test where namespaces are not allowed.
func Run(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	if os.Getenv(childEnv) != "" {
		Self(t).SetUp("lo")
		fn(t)
		return
	}
	out, err := runChild(t)
	switch {
	case errors.Is(err, unix.EPERM),
		errors.Is(err, unix.ENOSPC),
		errors.Is(err, unix.EINVAL),
		errors.Is(err, unix.ENOSYS):
		t.Skipf("no network namespaces here: %v", err)
	case err != nil:
		t.Errorf("in its namespace: %v\n%s", err, out)
	case strings.Contains(out, "--- SKIP: "+t.Name()+" "):
		t.Skip(out)
	default:
		t.Log(out)
	}
}

// runChild repeats the calling test in new namespaces: as root at first, then in
// a user namespace where it is root.
func runChild(t *testing.T) (string, error) {
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWPID, Pdeathsig: unix.SIGKILL}
	out, err := start(t, attr)
	if errors.Is(err, unix.EPERM) {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		return start(t, attr)
	}
	return out, err
}

func start(t *testing.T, attr *syscall.SysProcAttr) (string, error) {
	// This test only; subtests have a pattern for each level.
	only := "^" + strings.ReplaceAll(regexp.QuoteMeta(t.Name()), "/", "$/^") + "$"
	args := []string{"-test.run=" + only, "-test.v", "-test.count=1"}
	if deadline, ok := t.Deadline(); ok {
		// The child ends before its parent, so that it can print its goroutines.
		args = append(args, fmt.Sprintf("-test.timeout=%s", max(time.Until(deadline)-3*time.Second, time.Second)))
	}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	// By default the race detector waits a second at the end of each process.
	cmd.Env = append(os.Environ(), childEnv+"=1", "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Until waits for a condition, which it checks every few milliseconds, and fails the
// test at the deadline.
func Until(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline, tick := time.After(within), time.Tick(5*time.Millisecond)
	for !cond() {
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("timeout after %v: %s", within, what)
		}
	}
}

// Running runs something until stop is called, which waits for its end, or the test ends.
func Running(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// SetClock returns what time.Now would have returned in the moment of t if the wall clock had been
// set on, or back, by whole seconds before: another date with the same
// monotonic reading. It panics if t has none.
func SetClock(t time.Time, by time.Duration) time.Time {
	// The first word of a time.Time: the flag that it has a monotonic reading, seconds since 1885 and nanoseconds.
	const hasMonotonic, nanosecondLen = 1 << 63, 30
	wall := (*uint64)(unsafe.Pointer(&t))
	if *wall&hasMonotonic == 0 {
		panic("a time without a monotonic reading cannot tell that the clock was set")
	}
	*wall += uint64(int64(by/time.Second) << nanosecondLen)
	return t
}

// Without runs fn on a thread without a capability, a CAP_… of linux/capability.h: the kernel refuses what needs it.
// fn must not start goroutines for that.
func Without(t testing.TB, capability int, fn func()) {
	t.Helper()
	must(t, fmt.Sprintf("drop capability %d", capability), onThread(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var sets [2]unix.CapUserData
		if err := unix.Capget(&header, &sets[0]); err != nil {
			return err
		}
		sets[capability/32].Effective &^= 1 << (capability % 32)
		if err := unix.Capset(&header, &sets[0]); err != nil {
			return err
		}
		fn()
		return nil
	}))
}

// Must ends a test that has an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Race reports whether the race detector is on, under which everything takes several times as long.
func Race() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
