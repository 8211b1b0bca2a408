package heartbeat

import (
	"testing"
	"time"
)

// powerless is a world of n nodes with the first m of them, and the router, on one power line, which fails. A client is the
// only other foreign machine: it is known once it asks.
func powerless(t *testing.T, seed uint64, n, m int) (w *world, clientAsks func()) {
	w = newWorld(seed, n)
	settle(t, w)
	for _, one := range w.nodes[:m] {
		one.stop()
	}
	asked := false
	w.cut = func(from, to *node) bool { return !asked && (from == outside || to == outside) }
	return w, func() { asked = true }
}

// The only foreign machine falls silent with all other nodes: the survivor cannot tell that from a fault of its own port, and
// takes nothing, until a client asks for one of their addresses. With a second survivor it need not wait.
func TestRouterOnTheSamePowerLine(t *testing.T) {
	for seed := range uint64(10) {
		for _, n := range []int{2, 3} {
			for _, wait := range []time.Duration{2 * time.Second, 20 * time.Second, 5 * time.Minute} {
				w, clientAsks := powerless(t, seed, n, n-1)
				last := w.nodes[n-1]
				dead := func() bool { return last.sees(w.nodes[0]) == Dead && last.sees(w.nodes[n-2]) == Dead }
				w.stays(t, wait, func() bool { return !dead() }, "it takes nothing")
				clientAsks()
				w.must(t, 2900*ms, dead, "it takes over")
			}
		}
		w, _ := powerless(t, seed, 3, 1)
		w.must(t, time.Second, w.all(w.nodes[0], Dead), "two survivors")
	}
}

// A node that loses nine of ten frames, those of clients too, never takes what the other has, however long it lasts.
func TestClientsOfALossyNode(t *testing.T) {
	for seed := range uint64(5) {
		w := newWorld(seed, 2)
		settle(t, w)
		good, bad := w.nodes[0], w.nodes[1]
		w.cut = func(_, to *node) bool { return to == bad && w.random.IntN(100) < 90 }
		w.stays(t, 10*time.Minute, func() bool { return bad.sees(good) != Dead }, "the other lives")
	}
}
