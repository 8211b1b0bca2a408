package detect

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Where a speaker is down and its node forwards nothing moves, though a watcher hears badly, packets are lost, or a
// watcher stands still and loses what waited.
func TestLossOfRefusals(t *testing.T) {
	faults := map[string]func(a *announcers){
		"half of what comes to one": func(a *announcers) { a.lose(a.nodes[1], lossy{in: 50}) },
		"bursts at one":             func(a *announcers) { a.lose(a.nodes[1], lossy{in: 100, burst: time.Second / 2}) },
		"5% at all":                 func(a *announcers) { a.loss = 0.05 },
		"one stands still": func(a *announcers) {
			a.after(time.Second)
			a.nodes[1].pausedUntil = a.clock + 2500*ms
			a.cut = func(_, to *node) bool { return a.clock < to.pausedUntil }
		},
	}
	sizes := []int{2, 3, 8}
	for _, n := range sizes {
		for fault, begin := range faults {
			t.Run(fmt.Sprintf("%d nodes, %s", n, fault), func(t *testing.T) {
				for seed := range uint64(10) {
					a := newAnnouncers(seed, n, 1)
					down := a.nodes[0]
					down.kill()
					end := a.clock + 9*time.Second
					a.must(t, time.Second, a.all(down, SpeakerDown), "SpeakerDown to all")
					begin(a)
					a.never(t, end-a.clock, fmt.Sprintf("seed %d", seed), func(home, owners string) bool {
						return home == "0 " && owners != ""
					})
				}
			})
		}
	}
}

// A firewall that refuses heartbeats in the name of a node whose speaker answers on the wire ends no life and moves
// nothing. If the node then dies, it is given up.
func TestRejectedHeartbeats(t *testing.T) {
	for fault, blocks := range blocks {
		for _, n := range []int{2, 4, 8} {
			t.Run(fmt.Sprintf("%d nodes, %s", n, fault), func(t *testing.T) {
				a := newAnnouncers(uint64(n), n, 1)
				first := a.nodes[0]
				a.rejected = func(from, to *node) bool { return blocks(from, to, first) }
				began := a.clock
				a.run(25*time.Second, func() {
					for _, o := range a.nodes {
						if s := o.sees(first); !s.Living() {
							t.Fatalf("%v to %s after %v", s, o.name, a.clock-began)
						}
					}
					for j, home := range a.home {
						if a.owners[j] != home {
							t.Fatalf("an address of %sis with %q after %v", home, a.owners[j], a.clock-began)
						}
					}
				})
				reports := func(n *node) bool {
					return slices.ContainsFunc(n.d.members(n.clock()), func(m Member) bool { return m.Blocked })
				}
				if !slices.ContainsFunc(a.nodes, reports) {
					t.Error("no node reports the block")
				}
				first.stop()
				known := func() bool {
					return !slices.ContainsFunc(a.nodes, func(o *node) bool {
						return o != first && o.d.peers[first.id].listed && o.sees(first) != Dead
					})
				}
				a.must(t, time.Second, known, "dead to all that watch it")
			})
		}
	}
}
