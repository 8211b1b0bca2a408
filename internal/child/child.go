// Package child starts processes that work for the speaker's process and end with it.
//
//	p, err := child.Start([]string{"holdfast-bgp"}, os.Stderr)   // in the speaker
//	p.Conn.Write(order)
//	err = <-p.Ended()
//
//	conn, err := child.Parent()                                  // in the child
//
// The package knows nothing of the messages on the connection.
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
	// FirstFile is the number of the first file that was passed to Start.
	FirstFile
)

// Process is a child. The kernel ends it at the latest when the process that started it ends.
type Process struct {
	// Conn is the connection to the child, where Parent returns the other end.
	Conn  net.Conn
	cmd   *exec.Cmd
	ended chan error
}

// Start starts a command, with its standard error at stderr. The child has the files from FirstFile on.
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

	p := &Process{
		Conn:  conn,
		cmd:   cmd,
		ended: make(chan error, 1),
	}
	started := make(chan error, 1)
	go p.run(started)
	err = <-started
	if err != nil {
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

	ours := os.NewFile(uintptr(fds[0]), "child")
	theirs := os.NewFile(uintptr(fds[1]), "parent")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		err = fmt.Errorf("use a socket: %w", err)
		return nil, nil, errors.Join(err, theirs.Close())
	}

	return conn, theirs, nil
}

// defaultSlack is the kernel's default delay of timers.
const defaultSlack = 50 * time.Microsecond

// run runs the process on one thread. When that thread ends, the kernel kills the process
// (PR_SET_PDEATHSIG(2const)): it may be in no state to notice that the other end of Conn is gone.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The process inherits the timer slack of this thread, which may have been raised.
	slack := uintptr(defaultSlack.Nanoseconds())
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0)
	err := p.cmd.Start()
	started <- err
	if err == nil {
		p.ended <- p.cmd.Wait()
	}
}

// Ended returns the channel that receives the result of the process once.
func (p *Process) Ended() <-chan error { return p.ended }

// PID returns the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the process.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
}

// Quit makes a Go program print its stacks to its standard error and end, if it can.
func (p *Process) Quit() {
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
}

// Parent returns the connection to the process that started this one. This process ignores signals that end both: the
// other one then orders it to end.
func Parent() (net.Conn, error) {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	return Inherited(connFile)
}

// Inherited returns a connection that this process inherited, by the number of its file.
func Inherited(file uintptr) (net.Conn, error) {
	conn, err := net.FileConn(os.NewFile(file, "parent"))
	if err != nil {
		return nil, fmt.Errorf("only the speaker starts this: %w", err)
	}
	return conn, nil
}
