package nstest

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Without runs fn on a thread without a capability, a CAP_… of linux/capability.h: the kernel refuses what needs it. fn
// must not start goroutines for that.
func Without(t testing.TB, capability int, fn func()) {
	t.Helper()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err = drop(capability); err == nil {
			fn()
		}
	}()
	<-done
	if err != nil {
		t.Fatalf("drop capability %d: %v", capability, err)
	}
}

// drop removes a capability from those that the calling thread uses (capset(2)).
func drop(capability int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	sets[capability/32].Effective &^= 1 << (capability % 32)
	return unix.Capset(&header, &sets[0])
}
