package heartbeat

import (
	"fmt"
	"testing"
	"time"
)

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

// TestDeathInStep: how evenly threads wake does not delay the verdict on a node that lost its power, nor how many watch it.
//
// Trap: nodes in step have no sessions, so that nobody watches the one that dies.
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
				w.tap = func(_, _ *node, p packet) {
					for _, c := range p.claims {
						if c.status == ask {
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
