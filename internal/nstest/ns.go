package nstest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// threadNS is the network namespace of the calling thread.
const threadNS = "/proc/thread-self/ns/net"

// NS is a network namespace that lives as long as its test.
type NS struct {
	t  testing.TB
	fd *os.File
	nl *netlink.Handle
}

// Self returns the namespace that the test itself runs in: the node under test.
func Self(t testing.TB) *NS {
	t.Helper()
	fd, err := os.Open(threadNS)
	if err != nil {
		t.Fatalf("open own namespace: %v", err)
	}
	return newNS(t, fd)
}

// New makes a namespace, a far host with its loopback up.
func New(t testing.TB) *NS {
	t.Helper()
	var fd *os.File
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread ends with the goroutine and takes its namespace along.
		runtime.LockOSThread()
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			fd, err = os.Open(threadNS)
		}
	}()
	<-done
	if err != nil {
		t.Fatalf("make namespace: %v", err)
	}
	n := newNS(t, fd)
	n.SetUp("lo")
	return n
}

func newNS(t testing.TB, fd *os.File) *NS {
	t.Helper()
	n := &NS{t: t, fd: fd}
	t.Cleanup(func() { fd.Close() })
	n.Do(func() {
		// Not NewHandleAt: it looks namespaces up by PID.
		nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatalf("open rtnetlink: %v", err)
		}
		n.nl = nl
	})
	t.Cleanup(n.nl.Close)
	return n
}

// Do calls fn on a thread that is in the namespace. Sockets opened by fn stay
// there; goroutines started by fn do not. fn may end the test.
func (n *NS) Do(fn func()) {
	n.t.Helper()
	runtime.LockOSThread()
	before, err := os.Open(threadNS)
	if err != nil {
		n.t.Fatalf("open own namespace: %v", err)
	}
	defer before.Close()
	if err := unix.Setns(int(n.fd.Fd()), unix.CLONE_NEWNET); err != nil {
		n.t.Fatalf("enter namespace: %v", err)
	}
	defer func() {
		// A thread that cannot return to its namespace stays locked and ends with its goroutine.
		if err := unix.Setns(int(before.Fd()), unix.CLONE_NEWNET); err != nil {
			n.t.Errorf("leave namespace: %v", err)
			return
		}
		runtime.UnlockOSThread()
	}()
	fn()
}

// Command returns a command that runs in the namespace once started. Its first
// ExtraFile (descriptor 3) is taken. It dies with the test.
func (n *NS) Command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(n.t.Context(), "nsenter", append([]string{"--net=/proc/self/fd/3", "--", name}, args...)...)
	cmd.ExtraFiles = []*os.File{n.fd}
	return cmd
}

// Path names the namespace for programs, while the test runs.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.fd.Fd()) }

// Output runs a command in the namespace and returns what it printed; a failure ends the test.
func (n *NS) Output(name string, args ...string) string {
	n.t.Helper()
	out, err := n.Command(name, args...).CombinedOutput()
	if err != nil {
		n.t.Fatalf("run %s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Sysctl writes a value below /proc/sys/net, as in Sysctl("ipv4/ip_forward", "1").
func (n *NS) Sysctl(path, value string) {
	n.t.Helper()
	n.Do(func() {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", path), []byte(value), 0); err != nil {
			n.t.Fatalf("write sysctl: %v", err)
		}
	})
}
