package heartbeat

import (
	"fmt"
	"testing"
	"time"
)

// A node whose link is down for a part of every 15 s keeps its addresses away from others' clients a few times only. When the
// link has been up for as long as it takes to forgive, all is as before.
func TestFlappingLink(t *testing.T) {
	const period = 15 * time.Second
	sizes := []int{2, 3, 7}
	if raceDetector {
		sizes = sizes[:1] // make test-unit runs the rest without it
	}
	for _, n := range sizes {
		for _, down := range []time.Duration{time.Second, 4 * time.Second, 10 * time.Second} {
			t.Run(fmt.Sprintf("%d nodes, down for %v", n, down), func(t *testing.T) {
				a := newAnnouncersOf(uint64(n), n, 1, maxHoldDown)
				bad, began, lasts := a.nodes[0], a.now, time.Hour
				if n > 3 {
					lasts = 10 * time.Minute
				}
				a.cut = func(from, to *node) bool { return (from == bad) != (to == bad) && (a.now-began)%period < down }
				for a.now < began+lasts {
					a.after(overlap)
					a.look()
				}
				if moves := a.most(); moves > 12 {
					t.Errorf("%d moves", moves)
				}
				a.cut = nil
				for a.now < began+lasts+forgiveTime {
					a.after(overlap)
					a.look()
				}
				a.healed(t, "a link that flapped")
			})
		}
	}
}

// Two halves of a cluster that lose each other again and again are held down no longer than the first time: all are, so it would
// be of no use.
func TestFlappingPartition(t *testing.T) {
	const period = 15 * time.Second
	for _, n := range []int{2, 4} {
		a := newAnnouncersOf(uint64(n), n, 1, maxHoldDown)
		began := a.now
		index := map[*node]int{}
		for i, o := range a.nodes {
			index[o] = i
		}
		near := func(o *node) bool { return index[o] < n/2 }
		a.cut = func(from, to *node) bool {
			return from != outside && to != outside && near(from) != near(to) && (a.now-began)%period < 4*time.Second
		}
		a.after(10 * time.Minute)
		a.look()
		a.healed(t, fmt.Sprintf("%d nodes in halves", n))
		for _, o := range a.nodes {
			if o.d.own.status != Alive {
				t.Errorf("%d nodes in halves: %s is still held down", n, o.name)
			}
		}
	}
}
