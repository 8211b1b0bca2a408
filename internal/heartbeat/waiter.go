package heartbeat

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The files of a waiter.
const (
	timerFile = iota
	urgentFile
	beatsFile
	refusalsFile
	files
)

// waiter waits for a time and for files, as one file of the runtime's poller: that wakes one thread, and the runtime's
// monitor sleeps on. After a system call that waits, as after any that the runtime knows of, the monitor looks what
// goes on, which costs more than a heartbeat.
type waiter struct {
	epoll, timer int
	file         *os.File
	conn         syscall.RawConn
	woken        atomic.Bool
	// watched are the files that end a sleep, found those that ended the last one.
	watched, found [files]bool
	ready          [files]unix.EpollEvent
	look           func(uintptr) bool
}

func newWaiter() (*waiter, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	timer, failed := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err = errors.Join(err, failed, unix.SetNonblock(epoll, true)); err != nil { // else the poller does not take it
		return nil, fmt.Errorf("open a timer: %w", err)
	}
	w := &waiter{epoll: epoll, timer: timer, file: os.NewFile(uintptr(epoll), "timer")}
	w.conn, err = w.file.SyscallConn()
	w.look = w.takeFound
	w.watch(timerFile, timer, unix.EPOLLIN, true)
	// A file that the poller did not take has no deadline: each sleep would end at once.
	if err = errors.Join(err, w.file.SetReadDeadline(time.Time{})); err != nil || !w.watched[timerFile] {
		return nil, fmt.Errorf("wait for a timer: %w", cmp.Or[error](err, unix.ENOSPC))
	}
	return w, nil
}

// watch has a file end sleeps, or not. What the kernel refuses, as where the node has too many files watched, the next
// call asks again.
func (w *waiter) watch(file, fd int, events uint32, wanted bool) {
	if w.watched[file] == wanted {
		return
	}
	op := unix.EPOLL_CTL_DEL
	if wanted {
		op = unix.EPOLL_CTL_ADD
	}
	e := unix.EpollEvent{Events: events, Fd: int32(file)}
	if _, _, err := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(w.epoll), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(&e)), 0, 0); err == 0 {
		w.watched[file] = wanted
	}
}

// sleep returns when a file is ready, when it is woken, or after a time.
func (w *waiter) sleep(d time.Duration) {
	w.due(max(d, 1))
	w.found = [files]bool{}
	if w.woken.Load() {
		w.takeFound(0)
	} else {
		_ = w.conn.Read(w.look)
	}
	w.woken.Store(false) // what it was woken for is looked at after this
}

// takeFound reports whether any file is ready.
func (w *waiter) takeFound(uintptr) bool {
	n, _, err := unix.RawSyscall6(
		unix.SYS_EPOLL_PWAIT,
		uintptr(w.epoll),
		uintptr(unsafe.Pointer(&w.ready)),
		files,
		0,
		0,
		0,
	)
	if err != 0 {
		return false
	}
	for _, r := range w.ready[:n] {
		w.found[r.Fd] = true
	}
	return n > 0
}

// wake ends the present sleep, or the next one. It is safe for concurrent use.
func (w *waiter) wake() {
	w.woken.Store(true) // first: sleep may be about to set another time
	w.due(1)
}

func (w *waiter) due(d time.Duration) {
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	_, _, _ = unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, uintptr(w.timer), 0, uintptr(unsafe.Pointer(&at)), 0, 0, 0)
}

func (w *waiter) close() { _, _ = w.file.Close(), unix.Close(w.timer) }
