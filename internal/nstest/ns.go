package nstest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
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
	must(t, "open own namespace", err)
	return newNS(t, fd)
}

// New makes a namespace, a far host with its loopback up.
func New(t testing.TB) *NS {
	t.Helper()
	var fd *os.File
	err := onThread(func() (err error) {
		err = unix.Unshare(unix.CLONE_NEWNET)
		if err != nil {
			return err
		}

		fd, err = os.Open(threadNS)
		return err
	})
	must(t, "make namespace", err)
	n := newNS(t, fd)
	n.SetUp("lo")
	return n
}

// onThread calls fn on a thread of its own, which ends with fn and takes its namespace and its capabilities along.
func onThread(fn func() error) (err error) {
	var thread sync.WaitGroup
	thread.Go(func() {
		runtime.LockOSThread() // never unlocked: so the thread ends with the goroutine
		err = fn()
	})

	thread.Wait()
	return err
}

// newNS returns the namespace of a file, until the test ends.
func newNS(t testing.TB, fd *os.File) *NS {
	t.Helper()
	n := &NS{t: t, fd: fd}
	t.Cleanup(func() { fd.Close() })
	n.Do(func() {
		// Not NewHandleAt: it looks namespaces up by PID.
		var err error
		n.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		must(t, "open rtnetlink", err)
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
	must(n.t, "open own namespace", err)
	defer before.Close()
	err = unix.Setns(int(n.fd.Fd()), unix.CLONE_NEWNET)
	must(n.t, "enter namespace", err)
	defer func() {
		// A thread that cannot return to its namespace stays locked and ends with its goroutine.
		err := unix.Setns(int(before.Fd()), unix.CLONE_NEWNET)
		if err != nil {
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
	nsenter := []string{"--net=/proc/self/fd/3", "--", name}
	nsenter = append(nsenter, args...)
	cmd := exec.CommandContext(n.t.Context(), "nsenter", nsenter...)
	cmd.ExtraFiles = []*os.File{n.fd}
	return cmd
}

// Path names the namespace for programs, while the test runs.
func (n *NS) Path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.fd.Fd())
}

// Output runs a command in the namespace and returns what it printed; a failure ends the test.
func (n *NS) Output(name string, args ...string) string {
	n.t.Helper()
	out, err := n.Command(name, args...).CombinedOutput()
	if err != nil {
		n.t.Fatalf("run %s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}

	return string(out)
}

// Serve calls fn for each TCP connection to an address in the namespace, such as ":80", until the test ends. It closes
// the connection when fn returns.
func (n *NS) Serve(address string, fn func(net.Conn)) net.Listener {
	n.t.Helper()
	var l net.Listener
	n.Do(func() {
		var err error
		l, err = net.Listen("tcp", address)
		must(n.t, "listen", err)
	})

	n.t.Cleanup(func() { l.Close() })
	go ServeEach(l, fn)
	return l
}

// ServeEach calls fn for each connection until the listener is closed. It closes the connection when fn returns.
func ServeEach(l net.Listener, fn func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}

		go func() {
			defer c.Close()
			fn(c)
		}()
	}
}

// Sysctl writes a value below /proc/sys/net, as in Sysctl("ipv4/ip_forward", "1").
func (n *NS) Sysctl(path, value string) {
	n.t.Helper()
	n.Do(func() {
		file := filepath.Join("/proc/sys/net", path)
		err := os.WriteFile(file, []byte(value), 0)
		must(n.t, "write sysctl", err)
	})
}

// must ends a test that has an error.
func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
