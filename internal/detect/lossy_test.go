package detect

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// lossy is a fault at one node: so many of a hundred frames are lost, one way or both.
type lossy struct {
	in, out int
	// burst is how long all are lost, and none afterwards, by turns; 0 is all the time.
	burst time.Duration
}

func (f lossy) String() string {
	return fmt.Sprintf("%d%% in, %d%% out, bursts of %v", f.in, f.out, f.burst)
}

// lose makes a node lose frames, of foreign machines too.
func (a *announcers) lose(bad *node, f lossy) {
	a.cut = func(from, to *node) bool {
		if f.burst > 0 && a.clock/f.burst%2 == 0 {
			return false
		}
		return to == bad && a.random.IntN(100) < f.in || from == bad && a.random.IntN(100) < f.out
	}
}

// One node hears badly, is heard badly, or both: the addresses of others stay with them, its own are served by others
// soon where it cannot serve, nothing moves to and fro, and all is as before soon after.
func TestLossAtOneNode(t *testing.T) {
	sizes := []int{3, 4, 7, 9} // of nine, not all watch each other
	for _, n := range sizes {
		for _, percent := range []int{50, 80, 90, 99, 100} {
			for _, f := range []lossy{
				{in: percent}, {out: percent}, {in: percent, out: percent}, {in: percent, out: percent, burst: time.Second / 2},
			} {
				for seed := range uint64(max(1, 6/n)) {
					a := newAnnouncers(seed, n, 1)
					a.lose(a.nodes[0], f)
					what := fmt.Sprintf("%d nodes, %v, seed %d", n, f, seed)
					hit := a.clock
					a.run(30*time.Second, func() {
						for j, home := range a.home {
							late := f.burst == 0 && percent >= 90 && a.clock > hit+2*time.Second && a.owners[j] == home
							if home == "0 " && late {
								t.Fatalf("%s: no node took over after %v", what, a.clock-hit)
							}
							if home != "0 " && a.owners[j] != home {
								t.Fatalf("%s: an address of %swas taken by %safter %v", what, home, a.owners[j], a.clock-hit)
							}
						}
					})
					a.healed(t, what)
					if moves := a.maxMoves(); moves > 2 {
						t.Errorf("%s: %d moves", what, moves)
					}
				}
			}
		}
	}
}

// A node that hears nothing for so long that foreign machines are forgotten still treats its own link as faulty.
func TestLossForLong(t *testing.T) {
	for _, n := range []int{2, 3, 4} {
		a := newAnnouncers(uint64(n), n, 1)
		a.lose(a.nodes[0], lossy{in: 100})
		a.run(2*time.Second, nil)
		a.never(t, 2*time.Minute, fmt.Sprint(n, " nodes"), func(home, owners string) bool {
			return home != "0 " && owners != home || strings.Contains(owners, "0")
		})
		a.healed(t, fmt.Sprint(n, " nodes"))
		if moves := a.maxMoves(); moves > 2 {
			t.Errorf("%d nodes: %d moves", n, moves)
		}
	}
}

// Of two nodes the deaf one gives up what it has, and takes nothing.
func TestLossOfTwo(t *testing.T) {
	a := newAnnouncers(1, 2, 2)
	a.lose(a.nodes[0], lossy{in: 100})
	a.run(2*time.Second, nil)
	a.never(t, 30*time.Second, "100 % in", func(_, owners string) bool { return owners != "1 " })
	a.healed(t, "100 % in")
}

// In a large cluster too, whose nodes do not all watch each other.
func TestLossAmongMany(t *testing.T) {
	w := newWorld(3, 300)
	w.after(20 * time.Second)
	bad := w.nodes[0]
	w.cut = func(_, to *node) bool { return to == bad && w.random.IntN(100) < 95 }
	w.must(t, 2*time.Second, w.all(bad, HoldDown), "held down by its own claim")
	w.stays(t, 3*time.Second, func() bool {
		for _, n := range w.nodes[1:] {
			if s := bad.sees(n); s != Alive {
				t.Log(n.name, s)
				return false
			}
		}
		return w.all(bad, HoldDown)()
	}, "it calls no node dead")
}

// A node that loses a part of what comes does not hold down the only other node, which is back after a reboot.
func TestComplaintOfOne(t *testing.T) {
	for _, percent := range []int{20, 30} {
		w := settled(t, 5, 2)
		good, bad := w.nodes[0], w.nodes[1]
		good.stop()
		w.must(t, time.Second, w.all(good, Dead), "dead to the other")
		w.after(3 * time.Second)
		w.cut = func(_, to *node) bool { return to == bad && w.random.IntN(100) < percent }
		good.start()
		w.must(t, 5*time.Second, func() bool { return good.d.own.Status == HoldDown }, "held")
		w.must(t, time.Minute, func() bool { return good.d.own.Status == Alive }, "without restrictions again")
	}
}

// Where no foreign machine is, one of two nodes that loses most of what comes does not take what the other has.
func TestLossWithoutForeignMachines(t *testing.T) {
	w := newWorld(5, 2)
	w.noWire = true
	settle(t, w)
	good, bad := w.nodes[0], w.nodes[1]
	w.cut = func(_, to *node) bool { return to == bad && w.random.IntN(100) < 90 }
	w.stays(t, 5*time.Minute, func() bool {
		return bad.sees(good) == Alive && good.d.own.Status == Alive
	}, "the other has its rights")
}

// A survivor without another node, which would tell it from a node with packet loss, keeps its rights until it has
// taken over.
func TestSurvivorWithoutForeignMachines(t *testing.T) {
	w := newWorld(5, 3)
	w.noWire = true
	settle(t, w)
	last := w.nodes[2]
	w.nodes[0].stop()
	w.nodes[1].stop()
	dead := func() bool { return last.sees(w.nodes[0]) == Dead && last.sees(w.nodes[1]) == Dead }
	w.must(t, 5*time.Second, func() bool {
		if last.d.own.Status != Alive {
			t.Fatal("it gave up what it has")
		}
		return dead()
	}, "it takes over")
}

// Two speakers that are started again at once do not make the third think that it hears badly.
func TestRestartOfTwo(t *testing.T) {
	w := settled(t, 5, 3)
	for _, n := range w.nodes[:2] {
		n.kill()
	}
	w.after(200 * ms)
	for _, n := range w.nodes[:2] {
		n.start()
	}
	w.stays(t, 5*time.Second, func() bool { return w.nodes[2].d.own.Status == Alive }, "the third has its rights")
}

// A node that hears nothing, and has no foreign machine that could show which side is faulty, reports that: the others
// have what it had within two seconds, and it takes nothing of theirs while they do.
func TestDeafWithoutForeign(t *testing.T) {
	for _, n := range []int{3, 4, 7} {
		a := newAnnouncers(9, n, 1)
		a.noWire = true
		a.lose(a.nodes[0], lossy{in: 100})
		a.run(2*time.Second, nil)
		a.never(t, 28*time.Second, fmt.Sprint(n, " nodes"), func(home, owners string) bool {
			return home == "0 " && !strings.ContainsAny(owners, "123456")
		})
		a.healed(t, fmt.Sprint(n, " nodes"))
	}
}

// A node that each of the others hears now and then, and one of them always, is not silent to all; it steps back by
// what they tell it.
func TestHeardByNobody(t *testing.T) {
	w := settled(t, 7, 4)
	bad := w.nodes[0]
	w.cut = func(from, to *node) bool {
		turn := int(w.clock / (50 * time.Millisecond) % 6)
		return from == bad && (turn%2 == 1 || w.nodes[1+turn/2] != to)
	}
	w.must(t, 2*time.Second, func() bool { return bad.d.own.Status == HoldDown }, "held down by what others tell it")
}

// A node whose link is down for a part of every 15 s keeps its addresses away from others' clients a few times only.
// When the link has been up for as long as it takes to forgive, all is as before.
func TestFlappingLink(t *testing.T) {
	const period = 15 * time.Second
	sizes := []int{2, 3, 7}
	for _, n := range sizes {
		for _, down := range []time.Duration{time.Second, 4 * time.Second, 10 * time.Second} {
			t.Run(fmt.Sprintf("%d nodes, down for %v", n, down), func(t *testing.T) {
				a := newAnnouncersOf(uint64(n), n, 1, maxHoldDown)
				bad, began, lasts := a.nodes[0], a.clock, time.Hour
				if n > 3 {
					lasts = 10 * time.Minute
				}
				a.cut = func(from, to *node) bool { return (from == bad) != (to == bad) && (a.clock-began)%period < down }
				lookUntil := func(end time.Duration) {
					for a.clock < end {
						a.after(overlap)
						a.look()
					}
				}
				lookUntil(began + lasts)
				if moves := a.maxMoves(); moves > 12 {
					t.Errorf("%d moves", moves)
				}
				a.cut = nil
				lookUntil(began + lasts + forgiveTime)
				a.healed(t, "a link that flapped")
			})
		}
	}
}

// Two halves of a cluster that lose each other again and again are held down no longer than the first time: all are, so
// it would be of no use.
func TestFlappingPartition(t *testing.T) {
	const period = 15 * time.Second
	for _, n := range []int{2, 4} {
		a := newAnnouncersOf(uint64(n), n, 1, maxHoldDown)
		began := a.clock
		halves := apart(a.nodes[:n/2]...)
		a.cut = func(from, to *node) bool {
			return from != outside && to != outside && halves(from, to) && (a.clock-began)%period < 4*time.Second
		}
		a.after(10 * time.Minute)
		a.look()
		a.healed(t, fmt.Sprintf("%d nodes in halves", n))
		for _, o := range a.nodes {
			if o.d.own.Status != Alive {
				t.Errorf("%d nodes in halves: %s is still held down", n, o.name)
			}
		}
	}
}
