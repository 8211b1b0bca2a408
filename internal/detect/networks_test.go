package detect

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// links is a network of directed links between n nodes: bit i*(n-1)+j is that from node i to the jth of the others.
type links struct {
	n     int
	state int
}

func (l links) bit(from, to int) int {
	if to > from {
		to--
	}
	return from*(l.n-1) + to
}

func (l links) up(from, to int) bool { return l.state&(1<<l.bit(from, to)) != 0 }

// hears reports whether a node hears any other, and heard whether any hears it.
func (l links) hears(node int) bool {
	for i := range l.n {
		if i != node && l.up(i, node) {
			return true
		}
	}
	return false
}

func (l links) heard(node int) bool {
	for i := range l.n {
		if i != node && l.up(node, i) {
			return true
		}
	}
	return false
}

// whole reports whether messages get from every node to every other, by others where need be.
func (l links) whole() bool {
	for from := range l.n {
		reached := map[int]bool{from: true}
		for range l.n {
			for i := range reached {
				for j := range l.n {
					if i != j && l.up(i, j) {
						reached[j] = true
					}
				}
			}
		}
		if len(reached) < l.n {
			return false
		}
	}
	return true
}

// renamed returns the same network with other names: node i becomes names[i].
func (l links) renamed(names []int) links {
	out := links{n: l.n}
	for i := range l.n {
		for j := range l.n {
			if i != j && l.up(i, j) {
				out.state |= 1 << out.bit(names[i], names[j])
			}
		}
	}
	return out
}

// networks returns a network of each class of those that differ in the names alone, under so many random names.
func networks(n, names int, random *rand.Rand) (out []links) {
	seen := map[int]bool{}
	for state := range 1 << (n * (n - 1)) {
		l := links{n, state}
		if seen[state] {
			continue
		}
		for _, p := range permutations(n) {
			seen[l.renamed(p).state] = true
		}
		for range names {
			out = append(out, l.renamed(random.Perm(n)))
		}
	}
	return out
}

// permutations returns all orders of n numbers.
func permutations(n int) (out [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, order := range permutations(n - 1) {
		for at := range n {
			out = append(out, slices.Insert(slices.Clone(order), at, n-1))
		}
	}
	return out
}

func (l links) String() string { return fmt.Sprintf("network %0*b", l.n*(l.n-1), l.state) }

// set puts the network into force. With ports, a node that hears no other hears no machine at all, and a node that no
// other hears is heard by no machine, as when its port is faulty; else foreign machines hear it and are heard.
func (a *announcers) set(l links, ports bool) {
	index := map[*node]int{}
	for i, n := range a.nodes {
		index[n] = i
	}
	a.cut = func(from, to *node) bool {
		switch {
		case from == outside:
			return ports && !l.hears(index[to])
		case to == outside:
			return ports && !l.heard(index[from])
		}
		return !l.up(index[from], index[to])
	}
	a.outbound = func(n *node) bool { return !ports || l.heard(index[n]) }
}

// tally is what came of all networks.
type tally struct {
	// networks in which all addresses have one owner at rest, some have several, or some none.
	networks, one, several, none int
	// connected networks get messages from every node to every other.
	connected, connectedOne int
	// sure networks must have one owner; rest and moves are the most of these.
	sure  int
	rest  time.Duration
	moves int
}

// every has networks of n nodes, each class of them under three random names, befall a network that works, and logs
// what came of it: everything is as before 15 s after it ended. sure reports where every address must have one owner
// soon, and not move to and fro.
func every(t *testing.T, n int, ports bool, sure func(links) bool) {
	t.Helper()
	a := newAnnouncers(1, n, 1)
	var out tally
	seed := uint64(1)
	if known, err := strconv.ParseUint(os.Getenv("HISTORY_SEED"), 10, 64); err == nil {
		seed = known
	}
	t.Logf("HISTORY_SEED=%d", seed)
	for _, l := range networks(n, 3, rand.New(rand.NewPCG(seed, 0))) {
		a.set(l, ports)
		hit := a.clock
		a.run(4*time.Second, nil)
		one := out.count(a.owners)
		if l.whole() {
			out.connected++
			if one {
				out.connectedOne++
			}
		}
		rest, moves := a.rest(hit), a.maxMoves()
		if sure(l) {
			out.sure++
			out.rest, out.moves = max(out.rest, rest), max(out.moves, moves)
			if !one || rest > 2500*ms || moves > 2 {
				t.Errorf("%s: the owners are %q, at rest after %v, %d moves", l, a.owners, rest, moves)
			}
		}
		a.outbound = nil
		a.healed(t, l.String())
		a.maxMoves()
	}
	t.Logf("%d nodes, ports faulty %v: %+v", n, ports, out)
}

// count takes the outcome of one network, and reports whether every address has one owner.
func (o *tally) count(owners []string) bool {
	fewest, highest := len(owners), 0
	for _, of := range owners {
		fewest, highest = min(fewest, len(of)/2), max(highest, len(of)/2)
	}
	o.networks++
	switch {
	case highest > 1:
		o.several++
	case fewest == 0:
		o.none++
	default:
		o.one++
		return true
	}
	return false
}

// Of three nodes: wherever messages get from each to each, nothing moves; and wherever ports are faulty and one is left
// that works, it or another has every address alone.
func TestEveryNetworkOfThree(t *testing.T) {
	every(t, 3, false, links.whole)
	every(t, 3, true, func(l links) bool {
		return l.hears(0) && l.heard(0) || l.hears(1) && l.heard(1) || l.hears(2) && l.heard(2)
	})
}

// Of four nodes: wherever messages get from each to each and no more than four of the twelve links are down, every
// address has one owner.
func TestEveryNetworkOfFour(t *testing.T) {
	every(t, 4, false, func(l links) bool { return l.whole() && bits.OnesCount(uint(l.state)) >= 12-4 })
}

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
			a.cut = apart(a.nodes[:leaf]...)
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

// powerless is a world of n nodes with the first m of them, and the router, on one power line, which fails. A client is
// the only other foreign machine: it is known once it asks.
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

// The only foreign machine falls silent with all other nodes: the survivor cannot tell that from a fault of its own
// port, and takes nothing, until a client asks for one of their addresses. With a second survivor it need not wait.
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

// A node that loses nine of ten frames, of clients too, never takes what the other has, however long it lasts.
func TestClientsOfALossyNode(t *testing.T) {
	for seed := range uint64(5) {
		w := settled(t, seed, 2)
		good, bad := w.nodes[0], w.nodes[1]
		w.cut = func(_, to *node) bool { return to == bad && w.random.IntN(100) < 90 }
		w.stays(t, 10*time.Minute, func() bool { return bad.sees(good) != Dead }, "the other lives")
	}
}
