package heartbeat

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// TryRealtime gives a thread of this process real-time priority for a moment, as the heartbeat process gives it to all
// of its own.
func TryRealtime() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return fmt.Errorf("read the priority of a thread: %w", err)
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_RR, Priority: realtimePriority}, 0); err != nil {
		return fmt.Errorf("set real-time priority: %w", err)
	}
	if err := unix.SchedSetAttr(0, before, 0); err != nil {
		return fmt.Errorf("reset the priority of a thread: %w", err) // needs no capability
	}
	return nil
}
