package detect

import (
	"fmt"
	"testing"
	"time"
)

// TestMuteNodeAmongHeldDown: all nodes are held down, as after some power failures, and others hear nothing from one
// node that hears them. It leaves its addresses to the others, although they are held down like itself.
func TestMuteNodeAmongHeldDown(t *testing.T) {
	for _, n := range []int{3, 4, 8} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			a := newAnnouncers(1, n, 2)
			for _, node := range a.nodes {
				node.d.own.holdDown(node.clock(), time.Minute)
				node.d.claimSelf(node.clock(), node.d.own.Incarnation)
			}
			a.run(time.Second, nil)
			for i, node := range a.nodes {
				if status := a.nodes[(i+1)%n].sees(node); status != HoldDown {
					t.Fatalf("node %d is %v", i, status)
				}
			}

			mute := a.nodes[0]
			a.cut = func(from, _ *node) bool { return from == mute }
			a.run(time.Second, nil)
			if seen := a.watch(10 * time.Second); seen.none+seen.several > 0 {
				t.Errorf("%+v; owners %q, before %q", seen, a.owners, a.home)
			}
			// It counts as given up until the last claim of that is old. Meanwhile the others still answer.
			a.cut = nil
			a.run(time.Second+complaintTime, nil)
			if seen := a.watch(10 * time.Second); seen.none+seen.several > 0 {
				t.Errorf("after it: %+v; owners %q, before %q", seen, a.owners, a.home)
			}
		})
	}
}
