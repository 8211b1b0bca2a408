package engine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// garbage is how much of the heap may be garbage, in percent: an engine has little to do, and there is one for each peer.
	garbage = 50
	// maxMemory is what an engine may have, far more than it needs for as many routes as it takes. One that grows beyond
	// ends itself, and not a container or a node.
	maxMemory = 512 << 20
	// expendable is by how much of all memory, in tenths of a percent, the kernel takes an engine for larger than it is,
	// when memory is short: it rather ends an engine than the speaker.
	expendable = 100
)

// confine leaves this process what it needs: no capability, and not all memory. What is refused is no reason not to serve.
func confine() error {
	debug.SetGCPercent(garbage)
	limit := unix.Rlimit{Cur: maxMemory, Max: maxMemory}
	return errors.Join(dropCapabilities(), wrap("limit memory", unix.Setrlimit(unix.RLIMIT_DATA, &limit)), yieldMemory())
}

// dropCapabilities drops all: what dials routers needs none. It does nothing in a program with cgo, which only tests have.
func dropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0)
	if errno == 0 || errno == unix.ENOTSUP {
		return nil
	}
	return wrap("drop capabilities", errno)
}

// yieldMemory raises the process's score with the kernel's OOM killer (proc_pid_oom_score_adj(5)).
func yieldMemory() error {
	const path = "/proc/self/oom_score_adj"
	b, err := os.ReadFile(path)
	if err != nil {
		return wrap("yield memory", err)
	}
	score, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err == nil {
		err = os.WriteFile(path, strconv.AppendInt(nil, int64(min(score+expendable, 1000)), 10), 0)
	}
	return wrap("yield memory", err)
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
