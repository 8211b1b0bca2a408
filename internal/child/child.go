// Package child starts processes that work for the speaker's and end with it. It knows nothing of what they do.
package child

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Files of a child, after the standard ones.
const (
	connFile = iota + 3
	// FirstFile is the first one of those given to Start.
	FirstFile
)

// Process is a child. It ends when it wants, or when the process that started it does.
type Process struct {
	// Conn leads to the child, where Parent returns the other end.
	Conn  net.Conn
	cmd   *exec.Cmd
	ended chan error
}

// Start starts a command. What it writes to its standard error goes to stderr.
func Start(command []string, stderr io.Writer, files ...*os.File) (*Process, error) {
	conn, theirs, err := Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = stderr
	cmd.ExtraFiles = append([]*os.File{theirs}, files...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &Process{conn, cmd, make(chan error, 1)}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return p, nil
}

// Pair returns a connection, and the file of its other end for a child.
func Pair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create a pair of sockets: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "child"), os.NewFile(uintptr(fds[1]), "parent")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("use a socket: %w", err), theirs.Close())
	}
	return conn, theirs, nil
}

// usualSlack is how late timers may be by the kernel's default.
const usualSlack = 50 * time.Microsecond

// run runs the process on one thread. When that thread ends, the kernel kills the process
// (PR_SET_PDEATHSIG(2const)): it may be in no state to notice that the other end of Conn is gone.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The process inherits the timer slack of this thread, which may have been raised.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(usualSlack.Nanoseconds()), 0, 0, 0)
	err := p.cmd.Start()
	started <- err
	if err == nil {
		p.ended <- p.cmd.Wait()
	}
}

// Ended receives once how the process ended.
func (p *Process) Ended() <-chan error { return p.ended }

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the process.
func (p *Process) Kill() { _ = p.cmd.Process.Kill() }

// Quit has a Go program end with its stacks on its standard error, if it can.
func (p *Process) Quit() { _ = p.cmd.Process.Signal(syscall.SIGQUIT) }

// Parent returns the connection to the process that started this one. A signal to both is for the other one, which then
// orders this one to end.
func Parent() (net.Conn, error) {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	return Inherited(connFile)
}

// Inherited returns the connection to the process that started this one whose file has a number.
func Inherited(file uintptr) (net.Conn, error) {
	conn, err := net.FileConn(os.NewFile(file, "parent"))
	if err != nil {
		return nil, fmt.Errorf("only the speaker starts this: %w", err)
	}
	return conn, nil
}
