package heartbeat

import (
	"fmt"
	"testing"
	"time"
)

// Watchers do not keep a dead node alive among themselves, however close together they wake, and even if half of them missed its
// last heartbeats: what they tell each other gets no fresher by being passed on, and is soon all told.
func TestNoLifeByHearsay(t *testing.T) {
	for _, n := range []int{3, 4, 7, 50} {
		for _, wakes := range []time.Duration{20 * time.Microsecond, 200 * time.Microsecond, ms} {
			for _, missed := range []time.Duration{0, 60 * ms, 400 * ms} {
				what := fmt.Sprintf("%d nodes, wake-ups of %v, half of them missed the last %v", n, wakes, missed)
				var took []time.Duration
				told := 0
				for seed := range uint64(max(5, 100/n)) {
					w := newWorldWith(seed, n, func(w *world) { w.wakes, w.late = wakes, 100*time.Microsecond })
					settle(t, w)
					w.after(time.Duration(seed%50) * ms)
					first, odd := w.nodes[0], map[*node]bool{}
					for i, o := range w.nodes {
						odd[o] = i%2 == 1
					}
					w.cut = func(from, to *node) bool { return from == first && odd[to] }
					w.after(missed)
					w.cut = nil
					first.stop()
					before := told
					w.tap = func(from, _ *node, p packet) {
						for _, c := range p.claims {
							if c.about == first.id && !c.isVerdict() {
								told++
							}
						}
					}
					took = append(took, w.must(t, 20*time.Second, w.all(first, Dead), what+": dead to all"))
					if packets := (told - before) / min(n-1, Watchers); packets > 20 {
						t.Errorf("%s: %d questions and answers of each watcher", what, packets)
					}
				}
				half, worst := quantile(took, 0.5), quantile(took, 1)
				t.Logf("%s: dead to all after %v, at worst %v; %d questions and answers of each watcher", what, half, worst, told/len(took)/min(n-1, Watchers))
				if half >= 160*ms || worst >= 250*ms {
					t.Errorf("%s: dead to all after %v, at worst %v", what, half, worst)
				}
			}
		}
	}
}
