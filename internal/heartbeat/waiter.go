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
	routineFile
	refusalsFile
	nodePathFile
	files
)

// waiter waits for a time and for files, as one file of the runtime's poller. That wakes one thread, and the
// runtime's monitor sleeps on. After a system call that waits, as after any call that the runtime knows about, the
// monitor checks all threads, which costs more than a heartbeat.
type waiter struct {
	epoll, timer int
	file         *os.File
	conn         syscall.RawConn
	woken        atomic.Bool
	// watched are the files that end a sleep. found are the files that ended the last one.
	watched, found [files]bool
	ready          [files]unix.EpollEvent
	// poll is pollOnce as a value, which is made once.
	poll func(uintptr) bool
}

func newWaiter() (*waiter, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	timer, timerErr := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	err = errors.Join(err, timerErr, unix.SetNonblock(epoll, true)) // the poller refuses files that block
	if err != nil {
		return nil, fmt.Errorf("open a timer: %w", err)
	}

	w := &waiter{epoll: epoll, timer: timer, file: os.NewFile(uintptr(epoll), "timer")}
	w.conn, err = w.file.SyscallConn()
	w.poll = w.pollOnce
	w.watch(timerFile, timer, unix.EPOLLIN, true)

	// A file that the poller refused has no deadline: each sleep would end at once.
	err = errors.Join(err, w.file.SetReadDeadline(time.Time{}))
	if err != nil || !w.watched[timerFile] {
		return nil, fmt.Errorf("wait for a timer: %w", cmp.Or[error](err, unix.ENOSPC))
	}

	return w, nil
}

// watch sets whether a file ends sleeps. If the kernel refuses, as where the node has too many watched files, the
// next call tries again.
func (w *waiter) watch(file, fd int, events uint32, wanted bool) {
	if w.watched[file] == wanted {
		return
	}

	operation := unix.EPOLL_CTL_DEL
	if wanted {
		operation = unix.EPOLL_CTL_ADD
	}
	event := unix.EpollEvent{Events: events, Fd: int32(file)}
	_, _, err := unix.RawSyscall6(
		unix.SYS_EPOLL_CTL,
		uintptr(w.epoll),
		uintptr(operation),
		uintptr(fd),
		uintptr(unsafe.Pointer(&event)),
		0,
		0,
	)
	if err == 0 {
		w.watched[file] = wanted
	}
}

// sleep returns when a file is ready, when it is woken, or after a time.
func (w *waiter) sleep(d time.Duration) {
	w.setTimer(max(d, 1))
	w.found = [files]bool{}
	if w.woken.Load() {
		w.pollOnce(0)
	} else {
		_ = w.conn.Read(w.poll)
	}
	w.woken.Store(false) // the caller looks for the reason after this
}

// pollOnce reports whether any file is ready.
func (w *waiter) pollOnce(uintptr) bool {
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
	w.setTimer(1)
}

func (w *waiter) setTimer(d time.Duration) {
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	_, _, _ = unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, uintptr(w.timer), 0, uintptr(unsafe.Pointer(&at)), 0, 0, 0)
}

func (w *waiter) close() { _, _ = w.file.Close(), unix.Close(w.timer) }
