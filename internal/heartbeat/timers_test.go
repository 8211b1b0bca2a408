package heartbeat

import (
	"testing"
	"time"
)

// TestTimers: what can be set changes how long it takes until a lost node is dead to all.
//
// Trap: knobs that are stored and never looked at, as renewDeadline and retryPeriod (PureLB).
func TestTimers(t *testing.T) {
	for _, tt := range []struct {
		timers    Timers
		low, high time.Duration
	}{
		{Timers{}, 100 * ms, 350 * ms},
		{Timers{Interval: 200 * ms}, 350 * ms, 900 * ms},
		{Timers{Multiplier: 10}, 350 * ms, 700 * ms},
	} {
		w := newWorldOf(12, 3, tt.timers)
		settle(t, w)
		w.nodes[0].stop()
		if took := w.must(t, 5*time.Second, w.all(w.nodes[0], Dead), "dead to all"); took < tt.low || took > tt.high {
			t.Errorf("with %+v it takes %v, want %v to %v", tt.timers, took, tt.low, tt.high)
		}
	}
}
