package k8s

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A few Services are each handled at once; a burst is gathered, and ends.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b burst
		var mu sync.Mutex
		start, kicks := time.Now(), []time.Duration{}
		one := func() {
			b.add()
			b.kick(func() {
				mu.Lock()
				defer mu.Unlock()
				kicks = append(kicks, time.Since(start))
			})
		}
		expect := func(what string, want ...time.Duration) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(kicks) != len(want) {
				t.Fatalf("%s: kicks at %v, want %v", what, kicks, want)
			}
			for i := range want {
				if kicks[i] != want[i] {
					t.Fatalf("%s: kicks at %v, want %v", what, kicks, want)
				}
			}
			start, kicks = time.Now(), nil
		}
		for range 20 {
			one()
			time.Sleep(time.Second / burstRate)
		}
		if len(kicks) != 20 || b.active() {
			t.Errorf("%d kicks for 20 Services in 2 s, a burst: %t", len(kicks), b.active())
		}
		time.Sleep(time.Minute)
		start, kicks = time.Now(), nil

		for range burstSize {
			one()
		}
		expect("a handful", make([]time.Duration, burstSize)...)
		for range 1000 {
			time.Sleep(3 * time.Millisecond)
			one()
		}
		if !b.active() {
			t.Error("a thousand are no burst")
		}
		time.Sleep(900 * time.Millisecond)
		if !b.active() {
			t.Error("it disperses as soon as none comes")
		}
		time.Sleep(200 * time.Millisecond)
		if b.active() {
			t.Error("it does not disperse")
		}
		// The first of the thousand started the burst; the last was gathered in time.
		expect("a burst", 1003*time.Millisecond, 2005*time.Millisecond, 3007*time.Millisecond)
		one()
		expect("afterwards", 0)
	})
}
