package detect

import (
	"fmt"
	"slices"
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
		{Timers{}, 60 * ms, 250 * ms},
		{Timers{Interval: 200 * ms}, 500 * ms, 1100 * ms},
		{Timers{Multiplier: 20}, 350 * ms, 700 * ms},
	} {
		w := newWorldOf(12, 3, tt.timers)
		settle(t, w)
		w.nodes[0].stop()
		if took := w.must(t, 5*time.Second, w.all(w.nodes[0], Dead), "dead to all"); took < tt.low || took > tt.high {
			t.Errorf("with %+v it takes %v, want %v to %v", tt.timers, took, tt.low, tt.high)
		}
	}
}

// A node that was late asks for its least time and half more than it was late, as long as it remembers, and for no more
// than others could wait.
func TestLateAsksForMore(t *testing.T) {
	d := New(Config{NodeName: "a", Realtime: true, Random: func() uint64 { return 1 }}, time.Second)
	at := time.Second
	for _, tt := range []struct{ late, want time.Duration }{
		{0, 100 * ms}, {40 * ms, 160 * ms}, {0, 160 * ms}, {300 * ms, maxAdaptedHold}, {2 * time.Minute, maxAdaptedHold},
		{0, maxAdaptedHold},
	} {
		at = d.lastTick + d.timers.Interval + tt.late
		if d.sendHeartbeats(at); d.hold != tt.want {
			t.Errorf("%v late it asks for %v, want %v", tt.late, d.hold, tt.want)
		}
	}
	for range int(2 * time.Minute / d.timers.Interval) {
		at = d.lastTick + d.timers.Interval
		d.sendHeartbeats(at)
	}
	if d.hold != 100*ms {
		t.Errorf("two minutes later it asks for %v", d.hold)
	}
}

const us = time.Microsecond

// TestInStep: nodes that beat at the same moment get sessions with each other.
//
// Trap: each has just challenged the other when the other's challenge arrives, and answers nothing so soon.
func TestInStep(t *testing.T) {
	for _, n := range []int{2, 3, 7} {
		w := newWorldWith(1, n, func(w *world) { w.inStep, w.wakes, w.late = true, us, us })
		w.must(t, 200*ms, func() bool {
			for _, a := range w.nodes {
				for _, b := range w.nodes {
					if a != b && a.d.peers[b.id].session.boot == 0 {
						return false
					}
				}
			}
			return true
		}, fmt.Sprintf("%d sessions each", n-1))
	}
}

// TestDeathInStep: how evenly threads wake does not delay the verdict on a node that lost its power, nor how many watch
// it.
//
// Trap: nodes in step have no sessions, so that no node watches the victim.
func TestDeathInStep(t *testing.T) {
	for _, wakes := range []time.Duration{20 * us, 200 * us, ms} {
		for _, n := range []int{3, 7, 50} {
			deaths := 50
			if n > 7 {
				deaths = 10
			}
			var took []time.Duration
			packets := 0
			for i := range deaths {
				w := newWorldWith(uint64(i), n, func(w *world) { w.inStep, w.wakes, w.late = i%2 == 0, wakes, max(wakes, 20*us) })
				settle(t, w)
				victim := w.nodes[i%n]
				w.after(time.Duration(i) * ms)
				asked := 0
				w.tap = func(_, _ *node, p Packet) {
					for _, c := range p.Claims {
						if c.Status == query {
							asked++
						}
					}
				}
				victim.stop()
				within, _ := w.within(10*time.Second, w.all(victim, Dead))
				took, packets = append(took, within), packets+asked
			}
			name := fmt.Sprintf("wake-ups within %v, %d nodes", wakes, n)
			t.Logf("%s: p50 %v, worst %v, %d questions", name, quantile(took, 0.5), quantile(took, 1), packets/deaths)
			if quantile(took, 0.5) >= 160*ms || quantile(took, 1) >= 250*ms {
				t.Errorf("%s: p50 %v, worst %v", name, quantile(took, 0.5), quantile(took, 1))
			}
		}
	}
}

func quantile(times []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	rank := int(q*float64(len(sorted)) + 0.999999)
	return sorted[min(max(rank, 1), len(sorted))-1]
}
