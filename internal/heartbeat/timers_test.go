package heartbeat

import (
	"reflect"
	"testing"
	"time"
)

// died measures how long it takes until a lost node is dead to all.
func died(t *testing.T, w *world) time.Duration {
	w.nodes[0].stop()
	return w.must(t, 5*time.Second, w.all(w.nodes[0], Dead), "dead to all")
}

// heldAfter measures for how long a node is held down after so many deaths.
func heldAfter(deaths int) func(*testing.T, *world) time.Duration {
	return func(t *testing.T, w *world) (held time.Duration) {
		first := w.nodes[0]
		for range deaths {
			died(t, w)
			w.after(3 * time.Second)
			first.start()
			w.must(t, 3*time.Second, w.all(first, HoldDown), "held down to all")
			held = w.must(t, 10*time.Minute, w.all(first, Alive), "without restrictions again")
		}
		return held
	}
}

// forgiven measures how long a death is remembered.
func forgiven(t *testing.T, w *world) time.Duration {
	heldAfter(1)(t, w)
	return w.must(t, 11*time.Minute, func() bool { return w.nodes[0].d.own.deaths == 0 }, "forgiven")
}

// TestNoDeadTimers: every timer that can be set changes what it says, and what is
// not set has a default.
//
// Trap: knobs that are stored and never looked at, as renewDeadline and retryPeriod (PureLB).
func TestNoDeadTimers(t *testing.T) {
	tests := map[string]struct {
		timers    Timers
		measure   func(*testing.T, *world) time.Duration
		low, high time.Duration
	}{
		"Interval":    {Timers{Interval: 200 * ms}, died, 350 * ms, 900 * ms},
		"Multiplier":  {Timers{Multiplier: 10}, died, 350 * ms, 700 * ms},
		"HoldDown":    {Timers{HoldDown: 3 * time.Second}, heldAfter(1), 2 * time.Second, 4 * time.Second},
		"MaxHoldDown": {Timers{MaxHoldDown: 13 * time.Second}, heldAfter(3), 12 * time.Second, 14 * time.Second},
		"ForgiveTime": {Timers{ForgiveTime: time.Minute}, forgiven, 40 * time.Second, 61 * time.Second},
	}
	defaults := reflect.ValueOf(Timers{}.withDefaults())
	for i := range defaults.NumField() {
		name := defaults.Type().Field(i).Name
		if defaults.Field(i).IsZero() {
			t.Errorf("%s has no default", name)
		}
		tt, ok := tests[name]
		if !ok {
			t.Errorf("%s has no test", name)
			continue
		}
		within := func(timers Timers) (time.Duration, bool) {
			w := newWorldOf(12, 3, timers)
			settle(t, w)
			took := tt.measure(t, w)
			return took, tt.low <= took && took <= tt.high
		}
		if took, ok := within(tt.timers); !ok {
			t.Errorf("%s: with %+v it takes %v, want %v to %v", name, tt.timers, took, tt.low, tt.high)
		}
		if took, ok := within(Timers{}); ok {
			t.Errorf("%s: by default it takes %v, so nothing is tested", name, took)
		}
	}
}
