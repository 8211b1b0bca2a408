package heartbeat

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestTryRealtime: it needs SYS_NICE, and leaves the thread as it was.
func TestTryRealtime(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	policy := func() uint32 {
		is, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return is.Policy
	}
	before := policy()
	if err := TryRealtime(); err != nil {
		t.Skipf("no real-time priority here: %v", err)
	}
	if after := policy(); after != before {
		t.Errorf("the policy of the thread was %d and is %d", before, after)
	}
	limit := unix.Rlimit{}
	if err := unix.Getrlimit(unix.RLIMIT_RTPRIO, &limit); err != nil || limit.Cur > 0 {
		t.Skipf("everybody may have real-time priority here: %+v, %v", limit, err)
	}
	nstest.Without(t, unix.CAP_SYS_NICE, func() {
		if err := TryRealtime(); !errors.Is(err, unix.EPERM) {
			t.Errorf("without SYS_NICE: %v", err)
		}
	})
}
