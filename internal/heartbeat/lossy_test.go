package heartbeat

import (
	"fmt"
	"testing"
	"time"
)

func TestLossAtOneNode(t *testing.T) {
	for _, n := range []int{2, 3, 4, 7, 30} {
		for _, dir := range []string{"in", "out", "both"} {
			for _, percent := range []int{50, 80, 90, 99, 100} {
				stolen, yield, most, back, late := 0, 0, 0, time.Duration(0), 0
				runs := 6
				if n > 7 {
					runs = 1
				}
				for seed := range uint64(runs) {
					a := newAnnouncers(t, seed, n, 1)
					was := map[string]string{}
					for _, x := range a.addresses {
						was[x.String()] = a.owners[x]
					}
					bad := a.nodes[0]
					a.cut = func(from, to *node) bool {
						hit := dir != "out" && to == bad || dir != "in" && from == bad
						return hit && a.random.IntN(100) < percent
					}
					start := a.now
					for a.now < start+30*time.Second {
						a.after(10 * ms)
						a.look()
						for _, x := range a.addresses {
							w := was[x.String()]
							if w != "0" && a.owners[x] != w {
								stolen++
							}
							if w == "0" && a.now-start > 2*time.Second && (a.owners[x] == "0" || len(a.owners[x]) != 1) {
								yield++
							}
						}
					}
					a.cut = nil
					healed := a.now
					a.run(20 * time.Second)
					back = max(back, a.changed-healed)
					for _, x := range a.addresses {
						if a.owners[x] != was[x.String()] {
							late++
						}
						most = max(most, a.moves[x])
					}
				}
				fmt.Printf("%2d nodes %-4s %3d%%: stolen %d, not yielded %d, moves %d, back %v, wrong after %d\n", n, dir, percent, stolen, yield, most, back, late)
			}
		}
	}
}
