package detect

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// settle runs the world until every node sees every other.
func settle(t *testing.T, w *world) {
	t.Helper()
	for _, n := range w.nodes {
		w.must(t, 5*time.Second, w.all(n, Alive), n.name+" is alive to all")
	}
	w.after(3 * time.Second)
}

// settled is a world in which every node sees every other.
func settled(t *testing.T, seed uint64, n int) *world {
	t.Helper()
	w := newWorld(seed, n)
	settle(t, w)
	return w
}

// must runs the world until ok, and says how long it took.
func (w *world) must(t *testing.T, limit time.Duration, ok func() bool, what string) time.Duration {
	t.Helper()
	took, reached := w.within(limit, ok)
	if !reached {
		var seen string
		for _, n := range w.nodes {
			seen += fmt.Sprintf("\n%s (up %v):", n.name, n.up)
			for _, o := range w.nodes {
				seen += " " + n.sees(o).String()
			}
		}
		t.Fatalf("not within %v: %s; what each sees of all:%s", limit, what, seen)
	}
	return took
}

// stays runs the world for a time in which nothing may change the outcome.
func (w *world) stays(t *testing.T, time time.Duration, ok func() bool, what string) {
	t.Helper()
	if took, broken := w.within(time, func() bool { return !ok() }); broken {
		t.Fatalf("no more after %v: %s", took, what)
	}
}

func (w *world) total(count func(*Stats) uint64) (sum uint64) {
	for _, n := range w.nodes {
		sum += count(&n.d.stats)
	}
	return sum
}

// A node that loses its power is dead to all others soon, at every size, and
// alive again soon after it is back: held down, because it was dead.
func TestDeathAndReturn(t *testing.T) {
	for _, n := range []int{2, 3, 7, 8, 30} {
		w := settled(t, 1, n)
		first := w.nodes[0]
		first.stop()
		if took := w.must(t, time.Second, w.all(first, Dead), "dead to all"); took > 250*ms {
			t.Errorf("%d nodes: dead to all after %v", n, took)
		}
		w.after(3 * time.Second)
		first.start()
		w.must(t, 3*time.Second, w.all(first, HoldDown), "held down to all")
		w.stays(t, 5*time.Second, w.all(first, HoldDown), "held down to all")
		if first.d.own.Status != HoldDown {
			t.Errorf("the node that is held down calls itself %v", first.d.own.Status)
		}
		w.must(t, 8*time.Second, w.all(first, Alive), "without restrictions again")
	}
}

// powerCycle has a node lose its power for three seconds, and waits until all know of its death and of its return.
func (w *world) powerCycle(t *testing.T, n *node) {
	t.Helper()
	n.stop()
	w.must(t, time.Second, w.all(n, Dead), "dead to all")
	w.after(3 * time.Second)
	n.start()
	w.must(t, 3*time.Second, w.all(n, HoldDown), "held down to all")
}

// Each death in a short time holds down for longer, and a long life is forgiven.
//
// Trap: a node that comes and goes takes its addresses along each time (MetalLB).
func TestHoldDownGrows(t *testing.T) {
	w := settled(t, 2, 3)
	first := w.nodes[0]
	var held []time.Duration
	for range 3 {
		w.powerCycle(t, first)
		held = append(held, w.must(t, 10*time.Minute, w.all(first, Alive), "without restrictions again").Round(time.Second))
	}
	for i, want := range []time.Duration{10 * time.Second, 10 * time.Second, 20 * time.Second} {
		if held[i] < want || held[i] > want+2*time.Second {
			t.Errorf("held down for %v after the deaths, want %v of the %dth", held, want, i+1)
		}
	}
	w.must(t, 11*time.Minute, func() bool { return first.d.own.Deaths == 0 }, "forgiven")
}

// A long fault makes many deaths, each in the hold-down after the one before: it counts once.
func TestFaultCountsOnce(t *testing.T) {
	w := settled(t, 2, 3)
	first := w.nodes[0]
	for range 6 {
		w.powerCycle(t, first)
		w.after(5 * time.Second)
	}
	w.stays(t, 4*time.Second, w.all(first, HoldDown), "held down from the last death on")
	w.must(t, 3*time.Second, w.all(first, Alive), "without restrictions again")
	if first.d.own.Deaths != 1 {
		t.Errorf("%d deaths count, want 1", first.d.own.Deaths)
	}
}

// A verdict that the wire contradicts does not count, whatever its subject was before.
func TestAcquittalDoesNotCount(t *testing.T) {
	for _, before := range []Status{Alive, HoldDown} {
		w := settled(t, 2, 3)
		d := w.nodes[0].d
		p := d.peers[w.nodes[1].id]
		p.NodeClaim.Status, p.Deaths = before, 3
		d.declare(d.lastTick, p, Dead, false)
		d.revokeVerdict(d.lastTick, p)
		if p.Status != Alive || p.Deaths != 3 {
			t.Errorf("%v before the verdict: %v with %d deaths after it, want alive with 3", before, p.Status, p.Deaths)
		}
	}
}

// A speaker that is killed before its first heartbeat, as soon as one other has heard it, is missed by that one.
func TestDeathBeforeFirstBeat(t *testing.T) {
	for seed := range uint64(50) {
		w := newWorld(seed, 3)
		first, other := w.nodes[0], w.nodes[1]
		first.up = false
		w.after(time.Duration(seed) * ms) // where in their rhythm the others are
		first.boot()
		w.gossip()
		heard := func() bool { return other.d.peers[first.id].lastHeard != 0 }
		w.must(t, time.Second, heard, "heard by one")
		first.kill()
		w.must(t, time.Second, func() bool { return other.sees(first) == SpeakerDown }, "SpeakerDown to that one")
	}
}

// Deaths that a new run of the speaker hears of are forgiven as its own are.
func TestForgivenAfterRestart(t *testing.T) {
	w := settled(t, 2, 3)
	first := w.nodes[0]
	w.powerCycle(t, first)
	w.must(t, 12*time.Second, w.all(first, Alive), "without restrictions again")
	first.kill()
	w.must(t, time.Second, w.all(first, SpeakerDown), "SpeakerDown to all")
	first.start()
	w.must(t, 2*time.Second, w.all(first, Alive), "back")
	if first.d.own.Deaths == 0 {
		t.Fatal("its new run has not heard of its death")
	}
	w.must(t, forgiveTime+time.Second, func() bool { return first.d.own.Deaths == 0 }, "forgiven")
}

// A speaker that says goodbye is gone at once, and not held down afterwards.
func TestLeave(t *testing.T) {
	w := settled(t, 3, 8)
	first := w.nodes[0]
	first.d.Leave(first.clock())
	first.run()
	first.stop()
	w.must(t, 5*ms, w.all(first, Left), "gone for all")
	w.after(3 * time.Second)
	first.start()
	w.must(t, 2*time.Second, w.all(first, Alive), "back")
}

// A node whose fresh claims do not fit into a packet sends a goodbye and a
// death to everybody at once all the same.
func TestBroadcastAmongMuch(t *testing.T) {
	const many = 100
	broadcasts := func(about Status, do func(one *node, other *peerState)) {
		t.Helper()
		w := settled(t, 3, many)
		one := w.nodes[0]
		for _, p := range one.d.ring {
			one.d.disseminate(p.id)
		}
		reached := map[*node]bool{}
		w.tap = func(from, to *node, p Packet) {
			if from == one && slices.ContainsFunc(p.Claims, func(c NodeClaim) bool { return c.Status == about }) {
				reached[to] = true
			}
		}
		do(one, one.d.watching[0])
		one.run()
		if len(reached) != many-1 {
			t.Errorf("%v is sent to %d nodes at once, want all %d", about, len(reached), many-1)
		}
	}
	broadcasts(Left, func(one *node, _ *peerState) { one.d.Leave(one.clock()) })
	broadcasts(Dead, func(one *node, other *peerState) {
		one.d.declare(one.clock(), other, Dead, false)
		for _, p := range one.d.ring[:5] {
			one.d.send(p, Packet{}) // these carry claims, in turn
		}
	})
}

// A speaker that is killed leaves a node that forwards: it is SpeakerDown to all, and is
// dead only when it does not come back, or when its node goes too.
func TestSpeakerDown(t *testing.T) {
	for _, n := range []int{2, 3, 7, 30} {
		w := settled(t, 4, n)
		first := w.nodes[0]
		first.kill()
		if took := w.must(t, time.Second, w.all(first, SpeakerDown), "SpeakerDown to all"); took > 250*ms {
			t.Errorf("%d nodes: SpeakerDown to all after %v", n, took)
		}
		w.stays(t, 5*time.Second, w.all(first, SpeakerDown), "SpeakerDown to all")
		first.start()
		w.must(t, 2*time.Second, w.all(first, Alive), "alive again")

		first.kill()
		w.must(t, time.Second, w.all(first, SpeakerDown), "SpeakerDown to all")
		w.stays(t, 9*time.Second, w.all(first, SpeakerDown), "SpeakerDown to all")
		w.must(t, 4*time.Second, w.all(first, Dead), "given up")
		first.start()
		w.must(t, 3*time.Second, w.all(first, HoldDown), "back")

		second := w.nodes[1]
		second.kill()
		w.must(t, time.Second, w.all(second, SpeakerDown), "SpeakerDown to all")
		second.stop()
		w.must(t, 5*time.Second, w.all(second, Dead), "dead with its node")
		w.after(3 * time.Second)
		second.start()
		w.must(t, 3*time.Second, w.all(second, HoldDown), "back after its node was dead")
		w.must(t, 15*time.Second, w.all(second, Alive), "without restrictions again")
	}
}

// A frozen node is dead to the others. When it thaws it knows of the lapse in its
// first step, and what it was called before it is settled.
//
// Trap: a loser that steps down late (PureLB).
func TestFreeze(t *testing.T) {
	w := settled(t, 5, 3)
	first := w.nodes[0]
	epoch := first.d.epoch
	first.pausedUntil = w.clock + 2*time.Second
	w.must(t, 250*ms, w.all(first, Dead), "dead to all")
	w.until(first.pausedUntil)
	for first.d.epoch == epoch {
		if first.d.lastTick >= first.pausedUntil {
			t.Fatal("it runs again and has not noticed")
		}
		w.after(ms)
	}
	w.must(t, time.Second, func() bool { return first.d.isSettled(first.clock()) }, "settled")
	if first.d.own.Status != HoldDown {
		t.Errorf("settled, it calls itself %v", first.d.own.Status)
	}
	w.must(t, 50*ms, w.all(first, HoldDown), "back")
	if got := w.total(func(c *Stats) uint64 { return c.Confirmed }); got > 2 {
		t.Errorf("%d deaths were declared, want the two of the others at most", got)
	}
}

// A watcher that did not run distrusts its own clock: it declares no node dead.
func TestStallOfTheWatcher(t *testing.T) {
	for seed := range uint64(20) {
		w := settled(t, seed, 3)
		w.nodes[0].pausedUntil = w.clock + time.Duration(60+seed*7)*ms
		// What waited in its socket is lost too, as on a machine that stood still.
		w.cut = func(_, to *node) bool { return w.clock < to.pausedUntil }
		w.after(2 * time.Second)
		if got := w.nodes[0].d.stats.Confirmed; got != 0 {
			t.Errorf("paused for %dms, it called %d nodes dead", 60+seed*7, got)
		}
	}
}

// Watchers that run too seldom, and go on so, declare no living node dead, and do
// not wait for better times to see a death.
func TestSlowWatchers(t *testing.T) {
	for _, n := range []int{2, 3, 8} {
		for _, slow := range []time.Duration{100 * ms, 160 * ms, 240 * ms, 320 * ms, 640 * ms} {
			w := settled(t, 11, n)
			first := w.nodes[0]
			for _, o := range w.nodes[1:] {
				o.slow = slow
			}
			w.stays(t, 20*time.Second, w.all(first, Alive), fmt.Sprintf("%d nodes, up to %v late: alive to all", n, slow))
			first.up = false // and gossip never notices
			took := w.must(t, 4*time.Second, w.all(first, Dead), fmt.Sprintf("%d nodes, up to %v late: dead to all", n, slow))
			t.Logf("%d nodes, up to %v late: dead after %v", n, slow, took)
		}
	}
}

// One broken path is no death: another watcher vouches.
func TestOnePathCut(t *testing.T) {
	w := settled(t, 6, 4)
	a, b := w.nodes[0], w.nodes[1]
	w.gossips = true
	w.cut = func(from, to *node) bool { return from == a && to == b || from == b && to == a }
	w.stays(t, 20*time.Second, func() bool { return w.all(a, Alive)() && w.all(b, Alive)() }, "all alive to all")
	if got := w.total(func(c *Stats) uint64 { return c.Suspected }); got == 0 {
		t.Error("no node suspected another: the path was not cut")
	}
}

// A node whose receiver is broken declares no node dead, steps back, and takes nothing until it has
// heard well for a while.
func TestHearsBadly(t *testing.T) {
	for _, n := range []int{3, 5, 30} {
		w := settled(t, 7, n)
		bad := w.nodes[0]
		others := func(status Status) bool {
			for _, o := range w.nodes[1:] {
				if bad.sees(o) != status {
					return false
				}
			}
			return true
		}
		w.cut = func(_, to *node) bool { return to == bad }
		w.must(t, 2*time.Second, w.all(bad, HoldDown), "held down by its own claim")
		w.stays(t, 30*time.Second, func() bool {
			return w.all(bad, HoldDown)() && others(Alive)
		}, "held down, and the others are alive to all")
		w.cut = nil
		w.must(t, 15*time.Second, func() bool {
			return w.all(bad, Alive)() && bad.d.own.Status == Alive
		}, "without restrictions again")
	}
}

// A node that no other node hears is dead to the others, learns that, and stays so for as long as that lasts.
func TestUnheard(t *testing.T) {
	for _, n := range []int{3, 5, 30} {
		w := settled(t, 7, n)
		unheard := w.nodes[0]
		w.cut = func(from, _ *node) bool { return from == unheard }
		w.must(t, 300*ms, w.all(unheard, Dead), "dead to all")
		w.must(t, 300*ms, func() bool { return unheard.d.own.Status == HoldDown }, "it knows")
		w.stays(t, time.Minute, func() bool {
			return w.all(unheard, Dead)() && unheard.d.own.Status == HoldDown
		}, "dead to all, and it knows")
		w.cut = nil
		w.must(t, 15*time.Second, func() bool {
			return w.all(unheard, Alive)() && unheard.d.own.Status == Alive
		}, "without restrictions again")
	}
}

// The larger side of a partition goes on, and a node whose link is dead takes nothing. Healed, that one is
// held down and the others are not, so that nothing moves twice.
func TestPartition(t *testing.T) {
	w := settled(t, 8, 3)
	alone, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
	w.cut = apart(alone)
	w.must(t, 300*ms, w.all(alone, Dead), "the majority goes on")
	w.stays(t, 5*time.Second, func() bool {
		return alone.sees(b) == Alive && alone.sees(c) == Alive
	}, "a node that is cut off takes nothing")
	w.cut = nil
	w.must(t, 200*ms, func() bool {
		return w.all(alone, HoldDown)() && w.all(b, Alive)() && w.all(c, Alive)() && alone.d.own.Status == HoldDown
	}, "healed")
}

// A node that hears no other and whose link works takes the others for dead: they may well be.
func TestAloneOnAWorkingLink(t *testing.T) {
	for _, n := range []int{2, 3, 7} {
		w := settled(t, 8, n)
		alone := w.nodes[0]
		for _, o := range w.nodes[1:] {
			o.stop()
		}
		w.must(t, 300*ms, func() bool {
			return !slices.ContainsFunc(w.nodes[1:], func(o *node) bool { return alone.sees(o) != Dead })
		}, "the others are dead")
	}
}

// Where no foreign machine ever answered, a node that is left alone waits for two seconds.
func TestAloneWithoutForeignMachines(t *testing.T) {
	w := newWorld(8, 2)
	w.noWire = true
	settle(t, w)
	alone, other := w.nodes[0], w.nodes[1]
	other.stop()
	w.stays(t, 2*time.Second, func() bool { return alone.sees(other) == Alive }, "it waits")
	w.must(t, 500*ms, func() bool { return alone.sees(other) == Dead }, "it takes over")
}

// blocks are the heartbeats that a firewall around a node may take.
var blocks = map[string]func(from, to, blocked *node) bool{
	"both ways": func(from, to, blocked *node) bool { return from == blocked || to == blocked },
	"inbound":   func(_, to, blocked *node) bool { return to == blocked },
	"outbound":  func(from, _, blocked *node) bool { return from == blocked },
	"all nodes": func(_, _, _ *node) bool { return true },
}

// A blocked heartbeat port is no death as long as the wire answers: neither to the others nor to the node itself. Nor
// does the end of a block move anything: heartbeats that were lost while the wire answered show no lossy link. If the
// node then dies, it is given up.
func TestHeartbeatBlocked(t *testing.T) {
	for name, blocks := range blocks {
		for _, n := range []int{2, 3, 4, 8} {
			what := fmt.Sprintf("%s, %d nodes", name, n)
			w := settled(t, 9, n)
			first, second := w.nodes[0], w.nodes[1]
			block := func(from, to *node) bool { return blocks(from, to, first) }
			w.blocked = block
			w.stays(t, 12*time.Second, w.alive, what+": alive to all")
			w.blocked = nil
			w.stays(t, 12*time.Second, w.alive, what+": alive to all afterwards")
			w.blocked = block
			w.stays(t, 30*time.Second, w.alive, what+": alive to all, blocked again")
			if p := second.d.peers[first.id]; name != "inbound" && !p.isBlocked(second.clock(), Alive) {
				t.Errorf("%s: the block is not reported", what)
			}
			if first.stop(); n <= maxWatchers { // a node that does not watch it may hear of nothing
				w.must(t, time.Second, w.all(first, Dead), what+": dead to all")
			}
		}
	}
}

// A blocked gossip port is no death as long as heartbeats get through.
func TestGossipBlocked(t *testing.T) {
	for _, n := range []int{3, 30} {
		w := settled(t, 10, n)
		w.gossips = false
		w.gossip()
		isReported := func() bool {
			members := w.nodes[1].d.members(w.nodes[1].clock())
			return slices.ContainsFunc(members, func(m Member) bool { return m.GossipBlocked })
		}
		w.stays(t, 10*time.Second, func() bool { return w.alive() && !isReported() }, "alive to all, and not reported yet")
		w.must(t, time.Second, isReported, "reported")
		w.gossips = true
		w.gossip()
		w.must(t, time.Second, func() bool { return !isReported() }, "not reported any more")
	}
}

// Nor is it where a node hears those that it does not watch more seldom than once in orphanTime.
func TestGossipBlockedAmongMany(t *testing.T) {
	const interval = time.Second
	w := newWorldOf(10, 15, Timers{Interval: interval})
	w.loss = 0.01
	w.after(time.Minute)
	w.gossips = false
	w.gossip()
	for range 600 {
		w.after(500 * ms)
		for _, n := range w.nodes {
			if !w.all(n, Alive)() {
				t.Fatalf("%s is not alive to all after %v", n.name, w.clock-time.Minute)
			}
		}
	}
	// They are given up all the same when no node is left to watch them.
	last := w.nodes[0]
	for _, n := range w.nodes[1:] {
		n.stop()
	}
	w.must(t, 3*time.Minute, func() bool {
		return !slices.ContainsFunc(w.nodes[1:], func(n *node) bool { return last.sees(n) != Dead })
	}, "the last one takes all others for dead")
}

// A node that loses all others at once notices that: it does not take one of them for dead while it counts on the rest.
func TestCutOffAtOnce(t *testing.T) {
	for _, n := range []int{3, 4, 7, 30} {
		for seed := range uint64(20) {
			w := settled(t, seed, n)
			alone := w.nodes[int(seed)%n]
			w.cut = apart(alone)
			w.must(t, 500*ms, func() bool { return alone.d.isAlone(alone.clock()) }, "alone")
			w.stays(t, 5*time.Second, func() bool {
				return !slices.ContainsFunc(w.nodes, func(o *node) bool { return alone.sees(o) == Dead })
			}, "it takes no node for dead")
			w.cut = nil
			w.must(t, time.Second, func() bool { return !alone.d.isAlone(alone.clock()) }, "it hears again")
		}
	}
}

// A node that was alone and gave all others up for itself adopts their claim about a node that was lost meanwhile.
func TestPrivateDeathIsShared(t *testing.T) {
	for want, lose := range map[Status]func(*node){Dead: (*node).stop, SpeakerDown: (*node).kill} {
		w := settled(t, 14, 4)
		alone, other, lost := w.nodes[0], w.nodes[1], w.nodes[2]
		w.cut = func(from, to *node) bool { return (from == alone) != (to == alone) && from != outside && to != outside }
		w.must(t, time.Second, func() bool {
			return alone.sees(other) == Dead && alone.sees(lost) == Dead
		}, "the others are lost")
		lose(lost)
		w.must(t, time.Second, func() bool { return other.sees(lost) == want }, "the lost one is lost to the other, too")
		w.cut = nil
		w.must(t, time.Second, func() bool {
			return alone.sees(other).Living() && alone.sees(lost) == want
		}, "what the other says")
		w.after(time.Second)
		if alone.d.peers[lost.id].private {
			t.Errorf("what all say is still kept private: %v", want)
		}
	}
}

// Half of a cluster that loses the other half notices that at once, too.
func TestHalvesAtOnce(t *testing.T) {
	for seed := range uint64(20) {
		w := settled(t, seed, 4)
		near := func(n *node) bool { return n == w.nodes[0] || n == w.nodes[1] }
		w.cut = func(from, to *node) bool { return near(from) != near(to) && from != outside && to != outside }
		one := w.nodes[seed%4]
		gaveUp := func() bool {
			return slices.ContainsFunc(w.nodes, func(o *node) bool { return one.sees(o) == Dead })
		}
		w.must(t, 500*ms, gaveUp, "another is dead")
		counted := 0
		for _, m := range one.d.members(one.clock()) {
			if m.Status.Living() && !m.Silent {
				counted++
			}
		}
		if counted > 2 {
			t.Errorf("cut off from two, it counts on %d", counted)
		}
	}
}

// A half of a cluster that hears no foreign machine any more reports that its link fails, though its nodes hear each
// other; the other half, and a whole cluster, do not say so.
func TestHalfKnowsThatItsLinkFails(t *testing.T) {
	w := settled(t, 1, 4)
	near := func(n *node) bool { return n == w.nodes[0] || n == w.nodes[1] }
	fails := func(n *node) bool { return n.d.link.hasFailed() }
	if slices.ContainsFunc(w.nodes, fails) {
		t.Fatal("a link fails before")
	}
	w.cut = apart(w.nodes[0], w.nodes[1]) // foreign machines are with the other half
	errs := func(n *node) bool { return fails(n) != near(n) }
	w.must(t, time.Second, func() bool {
		return !slices.ContainsFunc(w.nodes, errs)
	}, "the half without foreign machines knows")
	w.stays(t, time.Minute, func() bool { return !slices.ContainsFunc(w.nodes, errs) }, "it knows")
}

// Watchers do not keep a dead node alive among themselves, however close together they wake, and even if half of them
// missed its last heartbeats: what they tell each other gets no fresher by being passed on, and is soon all told.
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
					w.tap = func(from, _ *node, p Packet) {
						for _, c := range p.Claims {
							if c.About == first.id && !c.isAssertion() {
								told++
							}
						}
					}
					took = append(took, w.must(t, 20*time.Second, w.all(first, Dead), what+": dead to all"))
					if packets := (told - before) / min(n-1, maxWatchers); packets > 20 {
						t.Errorf("%s: %d questions and answers of each watcher", what, packets)
					}
				}
				half, worst := quantile(took, 0.5), quantile(took, 1)
				t.Logf("%s: dead to all after %v, at worst %v; %d questions and answers of each watcher", what, half, worst,
					told/len(took)/min(n-1, maxWatchers))
				if half >= 120*ms || worst >= 150*ms {
					t.Errorf("%s: dead to all after %v, at worst %v", what, half, worst)
				}
			}
		}
	}
}
