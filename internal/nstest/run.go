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

// runChild repeats the calling test in new namespaces: as root at first, then in a user namespace where it is root.
func runChild(t *testing.T) (string, error) {
	attr := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWPID,
		Pdeathsig:  unix.SIGKILL,
	}
	out, err := start(t, attr)
	if !errors.Is(err, unix.EPERM) {
		return out, err
	}

	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings = asRoot(os.Getuid())
	attr.GidMappings = asRoot(os.Getgid())
	return start(t, attr)
}

// asRoot maps the id of a user or a group to root in a user namespace.
func asRoot(id int) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{
		ContainerID: 0,
		HostID:      id,
		Size:        1,
	}}
}

// start runs the calling test in a process with these attributes, and returns its output.
func start(t *testing.T, attr *syscall.SysProcAttr) (string, error) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", childArgs(t)...)
	// By default the race detector waits a second at the end of each process.
	race := "GORACE=atexit_sleep_ms=0 " + os.Getenv("GORACE")
	cmd.Env = append(os.Environ(), childEnv+"=1", race)
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// childArgs returns the arguments that run the calling test alone.
func childArgs(t *testing.T) []string {
	// A subtest has a pattern for each level.
	name := regexp.QuoteMeta(t.Name())
	only := "^" + strings.ReplaceAll(name, "/", "$/^") + "$"
	args := []string{"-test.run=" + only, "-test.v", "-test.count=1"}
	deadline, ok := t.Deadline()
	if ok {
		// The child ends before its parent, so that it can print its goroutines.
		timeout := max(time.Until(deadline)-3*time.Second, time.Second)
		args = append(args, fmt.Sprintf("-test.timeout=%s", timeout))
	}

	if testing.Short() {
		args = append(args, "-test.short")
	}

	return args
}

// Until waits for a condition, which it checks every few milliseconds. It fails the test if the condition is not met
// within the time.
func Until(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(within)
	tick := time.Tick(5 * time.Millisecond)

	for !cond() {
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("timeout after %v: %s", within, what)
		}
	}
}

// Running calls run in the background until stop is called or the test ends. stop waits until run has returned.
func Running(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()

	stop = sync.OnceFunc(func() {
		cancel()
		err := <-ended
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	})

	t.Cleanup(stop)
	return stop
}

// SetClock returns t with the date of a wall clock that was set forward or back by whole seconds. The monotonic reading
// stays the same. It panics if t has none.
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

// Without runs fn on a thread without a capability, a CAP_… of linux/capability.h. The kernel refuses operations that
// need the capability. Goroutines that fn starts have it.
func Without(t testing.TB, capability int, fn func()) {
	t.Helper()
	err := onThread(func() error {
		err := dropCapability(capability)
		if err != nil {
			return err
		}

		fn()
		return nil
	})
	must(t, fmt.Sprintf("drop capability %d", capability), err)
}

// dropCapability removes a capability from the effective ones of the calling thread.
func dropCapability(capability int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	err := unix.Capget(&header, &sets[0])
	if err != nil {
		return err
	}

	sets[capability/32].Effective &^= 1 << (capability % 32)
	return unix.Capset(&header, &sets[0])
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
	race := debug.BuildSetting{Key: "-race", Value: "true"}
	return slices.Contains(info.Settings, race)
}
