package engine

import (
	"errors"
	"fmt"
	"runtime/debug"
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
)

// confine leaves this process what it needs: no capability, and not all memory. What is refused is no reason not to serve.
func confine() error {
	debug.SetGCPercent(garbage)
	limit := unix.Rlimit{Cur: maxMemory, Max: maxMemory}
	return errors.Join(dropCapabilities(), wrap("limit memory", unix.Setrlimit(unix.RLIMIT_DATA, &limit)))
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

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
