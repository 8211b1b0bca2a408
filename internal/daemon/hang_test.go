package daemon

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestPulse: something hangs when its threads had the time for it, however long that took.
func TestPulse(t *testing.T) {
	for _, tt := range []struct {
		name  string
		delay time.Duration // its wait for a core in each second
		want  int           // looks; 0 for never
	}{
		{"it sleeps", 0, 10},
		{"it waits for a core half of the time", 500 * time.Millisecond, 20},
		{"it gets none", time.Second, 0},
		{"several threads wait", 3 * time.Second, 0},
	} {
		var p Pulse
		hung := 0
		for look := 1; look <= 1000 && hung == 0; look++ {
			if p.Look(time.Second, time.Duration(look)*tt.delay) >= 10*time.Second {
				hung = look
			}
		}
		if hung != tt.want {
			t.Errorf("%s: after %d looks, want %d", tt.name, hung, tt.want)
		}
	}
	var p Pulse
	for range 1000 {
		if p.Answered(); p.Look(time.Second, 0) > time.Second {
			t.Fatal("it answers")
		}
	}
}

// TestWaited: the kernel counts for how long threads wait for a core.
func TestWaited(t *testing.T) {
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		t.Skip("this kernel does not")
	}
	before := Waited(os.Getpid())
	var done atomic.Bool
	for range 4 * runtime.NumCPU() {
		go func() {
			runtime.LockOSThread() // many threads, more than cores
			for !done.Load() {
			}
		}()
	}
	defer done.Store(true)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4 * runtime.NumCPU()))
	nstest.Until(t, time.Minute, "threads have waited", func() bool { return Waited(os.Getpid()) > before+10*time.Millisecond })
}
