package k8s

import (
	"testing"
	"testing/synctest"
	"time"
)

// A few Services are no burst; many are one until a second after the last.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Cluster{burst: newBurst()}
		add := func(services int, pause time.Duration) {
			for range services {
				k.burst.Allow()
				time.Sleep(pause)
			}
		}
		for _, tt := range []struct {
			name     string
			services int
			pause    time.Duration
			active   bool
		}{
			{"steady", 20, time.Second / burstRate, false},
			{"a handful", burstSize, 0, false},
			{"a thousand", 1000, 3 * time.Millisecond, true},
			{"as soon as none comes", 0, 0, true},
		} {
			if add(tt.services, tt.pause); k.InBurst() != tt.active {
				t.Errorf("%s: a burst: %t", tt.name, !tt.active)
			}
			if !tt.active {
				time.Sleep(time.Minute)
			}
		}
		if time.Sleep(800 * time.Millisecond); !k.InBurst() {
			t.Error("it ends too early")
		}
		if time.Sleep(300 * time.Millisecond); k.InBurst() {
			t.Error("it does not end")
		}
	})
}
