package detect

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// portBlock is a fault of the heartbeats' port.
type portBlock struct {
	nodes int
	// way is a key of blocks, around the first node.
	way string
	// refuses reports whether a firewall refuses rather than drops, and fromFirstDay whether it did before the speakers
	// started.
	refuses, fromFirstDay bool
}

func (b portBlock) String() string {
	return fmt.Sprintf("%d nodes, %s, refuses %t, from the first day %t", b.nodes, b.way, b.refuses, b.fromFirstDay)
}

// portBlocks returns the faults of the port among so many nodes.
func portBlocks(numbers ...int) (out []portBlock) {
	for _, n := range numbers {
		for way := range blocks {
			for i := range 4 {
				out = append(out, portBlock{n, way, i&1 != 0, i&2 != 0})
			}
		}
	}
	return out
}

// impose blocks the port in a world, which has no nodes yet where it was so from the first day.
func (b portBlock) impose(w *world) {
	lost := func(from, to *node) bool { return blocks[b.way](from, to, w.nodes[0]) }
	if b.refuses {
		w.rejected = lost
	} else {
		w.blocked = lost
	}
}

// start returns a world where addresses are announced and the port is blocked.
func (b portBlock) start(change func(w *world)) *announcers {
	a := newAnnouncersWith(uint64(b.nodes), b.nodes, 1, func(w *world) {
		change(w)
		if b.fromFirstDay {
			b.impose(w)
		}
	})
	b.impose(a.world)
	return a
}

// blockedMembers returns the others that a node reports as blocked.
func (n *node) blockedMembers() (out []Member) {
	return slices.DeleteFunc(n.d.members(n.clock()), func(m Member) bool { return !m.Blocked })
}

// TestBlockedPort has the port of heartbeats blocked: frames carry. Nothing moves, the fault is reported, and a node
// that loses its power is replaced as soon as without it.
func TestBlockedPort(t *testing.T) {
	for _, b := range portBlocks(2, 3, 12) {
		t.Run(b.String(), func(t *testing.T) {
			a := b.start(func(w *world) {})
			first := a.nodes[0]
			if seen := a.watch(20 * time.Second); seen.none+seen.several > 0 || a.maxMoves() > 0 {
				t.Errorf("%+v; owners %q, before %q", seen, a.owners, a.home)
			}
			for _, n := range a.nodes {
				for _, m := range n.blockedMembers() {
					isAffected := blocks[b.way](a.byID[NodeIDOf(m.Name)], n, first)
					if !m.ByFrames || m.Silent || !isAffected {
						t.Errorf("%s reports %+v", n.name, m)
					}
				}
			}
			reporter := first
			if b.way == "outbound" {
				reporter = a.nodes[1]
			}
			if len(reporter.blockedMembers()) == 0 {
				t.Errorf("%s does not report the block", reporter.name)
			}

			first.stop()
			took, ok := a.within(5*time.Second, func() bool { return a.isServed("0 ") })
			t.Logf("owners after %v", took)
			if !ok || took > 250*ms {
				t.Errorf("owners %q after %v", a.owners, took)
			}
			if seen := a.watch(10 * time.Second); seen.none+seen.several > 0 {
				t.Errorf("after the power-off: %+v; owners %q", seen, a.owners)
			}
			first.start()
			a.run(2*time.Second, nil) // until gossip has found it
			a.healed(t, "the port was blocked")
		})
	}
}

// TestPortIsOpened opens the port again: soon datagrams are enough, and no fault is reported.
func TestPortIsOpened(t *testing.T) {
	for _, b := range portBlocks(3) {
		a := b.start(func(w *world) {})
		a.after(15 * time.Second)
		usesFrames := func(n *node) bool { return n.d.UsesFrames() }
		if !slices.ContainsFunc(a.nodes, usesFrames) {
			t.Errorf("%s: no frames are exchanged", b)
		}
		a.blocked, a.rejected = nil, nil
		a.after(3 * time.Second)
		for _, n := range a.nodes {
			if usesFrames(n) || len(n.blockedMembers()) > 0 {
				t.Errorf("%s: %s uses frames %t, and reports %+v", b, n.name, usesFrames(n), n.blockedMembers())
			}
		}
		if seen := a.watch(5 * time.Second); seen.none+seen.several > 0 || a.maxMoves() > 0 {
			t.Errorf("%s: %+v; owners %q, before %q", b, seen, a.owners, a.home)
		}
	}
}

// TestBlockedPortAndIdleNode has the port of a node blocked that announces nothing, so that no echo shows that it
// lives: after a while it is alive to all, and stays so.
func TestBlockedPortAndIdleNode(t *testing.T) {
	for _, b := range portBlocks(3) {
		t.Run(b.String(), func(t *testing.T) {
			w := newWorldWith(1, b.nodes, func(w *world) {
				w.announcesNothing = true
				if b.fromFirstDay {
					b.impose(w)
				}
			})
			w.after(4 * time.Second)
			b.impose(w)
			w.after(15 * time.Second)
			w.stays(t, 30*time.Second, w.alive, "alive to all")
		})
	}
}

// TestFramesDropped has frames dropped on the link of the heartbeats, by all switches or by a node's port, from the
// first day or later: nothing moves, and power-off is as fast as before.
func TestFramesDropped(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		for where, drops := range map[string]func(w *world, from, to *node) bool{
			"at all":  func(*world, *node, *node) bool { return true },
			"at one":  func(w *world, from, to *node) bool { return from == w.nodes[0] || to == w.nodes[0] },
			"one way": func(w *world, from, to *node) bool { return from == w.nodes[0] },
		} {
			a := newAnnouncersWith(1, n, 1, func(w *world) {
				w.dropped = func(from, to *node) bool { return drops(w, from, to) }
			})
			what := fmt.Sprintf("%d nodes, %s", n, where)
			if seen := a.watch(20 * time.Second); seen.none+seen.several > 0 || a.maxMoves() > 0 {
				t.Errorf("%s: %+v; owners %q, before %q", what, seen, a.owners, a.home)
			}
			a.nodes[0].stop()
			if took, ok := a.within(5*time.Second, func() bool { return a.isServed("0 ") }); !ok || took > 250*ms {
				t.Errorf("%s: owners %q after %v", what, a.owners, took)
			}
		}
	}
}

// TestPortAndFramesBlocked has neither heartbeats nor frames arrive: gossip tells who lives. Nothing moves, and a node
// that loses its power is replaced.
func TestPortAndFramesBlocked(t *testing.T) {
	for _, b := range portBlocks(2, 3) {
		t.Run(b.String(), func(t *testing.T) {
			a := b.start(func(w *world) {})
			a.dropped = func(from, to *node) bool { return true }
			if seen := a.watch(20 * time.Second); seen.none+seen.several > 0 || a.maxMoves() > 0 {
				t.Errorf("%+v; owners %q, before %q", seen, a.owners, a.home)
			}
			a.nodes[0].stop()
			if took, ok := a.within(15*time.Second, func() bool { return a.isServed("0 ") }); !ok {
				t.Errorf("owners %q after %v", a.owners, took)
			}
		})
	}
}

// TestFramesHideNoLoss has most packets of a node lost: frames do not bring more of them.
func TestFramesHideNoLoss(t *testing.T) {
	for _, percent := range []int{50, 75, 90} {
		w := settled(t, 1, 3)
		first := w.nodes[0]
		w.cut = func(from, to *node) bool { return apart(first)(from, to) && w.loses(percent) }
		frames, looks := 0, 0
		for range 3000 {
			w.after(10 * ms)
			looks++
			if w.nodes[1].d.peers[first.id].lacksDatagrams {
				frames++
			}
		}
		if frames > looks/20 {
			t.Errorf("%d %% lost: frames are asked for in %d of %d looks", percent, frames, looks)
		}
	}
}
