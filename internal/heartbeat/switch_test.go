package heartbeat

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Switches that answer ARP for all keep no dead node alive.
func TestPowerOffBehindSwitchThatAnswers(t *testing.T) {
	for _, n := range []int{2, 3, 7} {
		for seed := range uint64(10) {
			w := newWorld(seed, n)
			w.answersARP = true
			settle(t, w)
			victim := w.nodes[seed%uint64(n)]
			victim.stop()
			w.must(t, 250*ms, w.all(victim, Dead), fmt.Sprintf("%d nodes, seed %d: dead", n, seed))
		}
	}
}

// A leaf that answers for all and is cut off is a partition like any other: soon after it heals each address has one
// owner.
func TestLeafThatAnswersIsCutOff(t *testing.T) {
	for _, n := range []int{2, 3, 4, 7} {
		for leaf := 1; leaf <= n/2; leaf++ {
			a := newAnnouncers(uint64(n), n, 1)
			a.answersARP = true
			behind := map[*node]bool{}
			for _, node := range a.nodes[:leaf] {
				behind[node] = true
			}
			a.cut = func(from, to *node) bool { return behind[from] != behind[to] }
			a.run(10*time.Second, nil)
			what := fmt.Sprintf("%d of %d nodes", leaf, n)
			for j, owner := range a.owners {
				if len(strings.Fields(owner)) != 2 {
					t.Errorf("%s cut off: %s has the owners %q, one of each side would be right", what, a.addresses[j], owner)
				}
			}
			a.cut = nil
			a.run(2*time.Second, nil)
			for j, owner := range a.owners {
				if len(strings.Fields(owner)) != 1 {
					t.Errorf("%s: 2 s after it healed %s has the owners %q", what, a.addresses[j], owner)
				}
			}
			a.healed(t, what)
		}
	}
}
