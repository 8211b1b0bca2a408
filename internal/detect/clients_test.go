package detect

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// newDual starts n nodes with heartbeats on a private network and clients on another one. A gateway is known on both,
// on one, or on none.
func newDual(n int, gateway, clientsGateway bool) *announcers {
	a := newAnnouncers(1, n, 1)
	a.clients = &network{hasForeign: clientsGateway}
	if !gateway {
		a.noGateway = true
	}
	return a
}

// duals calls f for all numbers of nodes, with and without gateways.
func duals(t *testing.T, numbers []int, f func(t *testing.T, a *announcers)) {
	t.Helper()
	for _, n := range numbers {
		for _, gateway := range []bool{true, false} {
			for _, clientsGateway := range []bool{true, false} {
				name := fmt.Sprintf("%d nodes, gateway %t, clients' gateway %t", n, gateway, clientsGateway)
				t.Run(name, func(t *testing.T) { f(t, newDual(n, gateway, clientsGateway)) })
			}
		}
	}
}

// owned counts the looks at which an address has no owner, and those at which one has several.
type owned struct{ none, several, looks int }

func (a *announcers) watch(d time.Duration) (seen owned) {
	a.run(d, func() {
		for _, owners := range a.owners {
			seen.looks++
			switch {
			case owners == "":
				seen.none++
			case len(owners) > len("12 ") || len(owners) > len("0 ") && len(a.nodes) <= 10:
				seen.several++
			}
		}
	})
	return seen
}

// TestPrivateNetworkFails cuts all nodes off from each other and from the gateway, on the network of the heartbeats
// alone: nothing moves, for as long as it lasts.
func TestPrivateNetworkFails(t *testing.T) {
	duals(t, []int{2, 3, 5, 12}, func(t *testing.T, a *announcers) {
		a.gossips = false
		a.cut = func(from, to *node) bool { return true }
		a.at(a.clock+6*time.Second, a.gossip)
		if seen := a.watch(20 * time.Second); seen.none+seen.several > 0 || a.maxMoves() > 0 {
			t.Errorf("%+v; owners %q, before %q", seen, a.owners, a.home)
		}
		a.gossips = true
		a.healed(t, "the private network failed")
	})
}

// TestNodesIsolated has the switch of the heartbeats' network isolate all nodes from each other, and from no other
// machine. The nodes hear each other on the clients' network: nothing moves, for as long as it lasts.
func TestNodesIsolated(t *testing.T) {
	duals(t, []int{2, 3, 5, 12}, func(t *testing.T, a *announcers) {
		a.gossips = false
		a.cut = func(from, to *node) bool { return from != outside && to != outside }
		a.at(a.clock+6*time.Second, a.gossip)
		if seen := a.watch(20 * time.Second); seen.none+seen.several > 0 || a.maxMoves() > 0 {
			t.Errorf("%+v; owners %q, before %q", seen, a.owners, a.home)
		}
		a.gossips = true
		a.healed(t, "the nodes were isolated")
	})
}

// TestSpeakersStall cuts the network of the heartbeats, while no speaker answers an echo for 290 ms of each second, as
// on busy nodes. No address moves.
func TestSpeakersStall(t *testing.T) {
	duals(t, []int{2, 3, 5}, func(t *testing.T, a *announcers) {
		a.gossips = false
		a.cut = func(from, to *node) bool { return true }
		a.clients.isStalled = func() bool { return a.clock%time.Second < 290*ms }
		seen := a.watch(20 * time.Second)
		if seen.none+seen.several > 0 || a.maxMoves() > 0 {
			t.Errorf("%+v; owners %q, before %q", seen, a.owners, a.home)
		}
	})
}

// TestPowerOffWhilePrivateNetworkFails switches a node off meanwhile. Where a foreign machine shows that the clients'
// network works, others take its addresses over.
func TestPowerOffWhilePrivateNetworkFails(t *testing.T) {
	duals(t, []int{2, 3, 5, 7}, func(t *testing.T, a *announcers) {
		a.gossips = false
		a.cut = func(from, to *node) bool { return true }
		a.run(20*time.Second, nil)
		first := a.nodes[0]
		first.stop()
		took, ok := a.within(5*time.Second, func() bool {
			a.look()
			for j, home := range a.home {
				if home == "0 " && a.owners[j] == "" {
					return false
				}
			}
			return true
		})
		t.Logf("owners after %v", took)
		if a.clients.hasForeign && (!ok || took > 500*ms) {
			t.Errorf("owners %q after %v", a.owners, took)
		}
		if seen := a.watch(20 * time.Second); a.clients.hasForeign && seen.none+seen.several > 0 || seen.several > 0 {
			t.Errorf("%+v; owners %q, before %q", seen, a.owners, a.home)
		}
		a.gossips = true
		first.start()
		a.healed(t, "the private network failed")
	})
}

// TestPrivatePortFails cuts one node off, on the network of the heartbeats alone. Others own its addresses soon. Of two
// nodes neither can tell which port it is, unless a gateway answers one.
func TestPrivatePortFails(t *testing.T) {
	duals(t, []int{2, 3, 5, 12}, func(t *testing.T, a *announcers) {
		a.gossips = false
		a.cut = apart(a.nodes[0])
		a.at(a.clock+6*time.Second, a.gossip)
		seen := a.watch(1500 * ms)
		t.Logf("at first %+v", seen)
		if seen.none > 0 || seen.several > 30 {
			t.Errorf("at first %+v", seen)
		}
		if seen = a.watch(20 * time.Second); seen.none+seen.several > 0 {
			t.Errorf("%+v; owners %q, before %q", seen, a.owners, a.home)
		}
		for j, owner := range a.owners {
			knowing := len(a.nodes) > 2 || !a.noGateway
			if knowing && owner == "0 " || !knowing && owner != a.home[j] {
				t.Errorf("owners %q, before %q", a.owners, a.home)
			}
		}
		a.gossips = true
		a.healed(t, "the private port failed")
	})
}

// TestPrivatePortFailsAmongOlder: speakers that do not say whether they hear others leave it to the gateway, as before.
func TestPrivatePortFailsAmongOlder(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		a := newDual(n, true, true)
		a.clients.isOld = true
		a.gossips = false
		a.cut = apart(a.nodes[0])
		a.run(1500*ms, nil)
		if seen := a.watch(20 * time.Second); seen.none+seen.several > 0 {
			t.Errorf("%d nodes: %+v; owners %q, before %q", n, seen, a.owners, a.home)
		}
		a.gossips = true
		a.healed(t, "the private port failed")
	}
}

// TestClientsNetworkFails has the network without heartbeats fail: heartbeats go on, and nothing moves.
func TestClientsNetworkFails(t *testing.T) {
	duals(t, []int{2, 3, 5}, func(t *testing.T, a *announcers) {
		a.clients.cut = func(from, to *node) bool { return true }
		if seen := a.watch(20 * time.Second); seen.none+seen.several > 0 || a.maxMoves() > 0 {
			t.Errorf("%+v; owners %q, before %q", seen, a.owners, a.home)
		}
		first := a.nodes[0]
		first.stop()
		took, _ := a.within(5*time.Second, a.all(first, Dead))
		t.Logf("dead to all after %v", took)
		if took > 250*ms && !(a.noGateway && len(a.nodes) == 2 && took < 2500*ms) {
			t.Errorf("dead to all after %v", took)
		}
	})
}

// TestHeldDownWhilePrivateNetworkFails: a node that is held down when the network fails takes nothing back while the
// others cannot hear that.
func TestHeldDownWhilePrivateNetworkFails(t *testing.T) {
	duals(t, []int{3, 5}, func(t *testing.T, a *announcers) {
		first := a.nodes[0]
		first.stop()
		a.run(3*time.Second, nil)
		first.start()
		a.run(3*time.Second, nil)
		if first.d.own.Status != HoldDown {
			t.Fatalf("it is %s", first.d.own.Status)
		}
		a.gossips = false
		a.cut = func(from, to *node) bool { return true }
		if seen := a.watch(20 * time.Second); seen.none+seen.several > 0 {
			t.Errorf("%+v; owners %q, before %q", seen, a.owners, a.home)
		}
		a.gossips = true
		a.healed(t, "the private network failed")
	})
}

// TestPrivateNetworkSick has the network of the heartbeats lose packets in many ways while the network of the clients
// works. However long it lasts, each address has one owner.
func TestPrivateNetworkSick(t *testing.T) {
	for name, lost := range map[string]func(a *announcers, from, to *node) bool{
		"one node's way out": func(a *announcers, from, to *node) bool { return from == a.nodes[0] },
		"one node's way in":  func(a *announcers, from, to *node) bool { return to == a.nodes[0] },
		"90 % at one node": func(a *announcers, from, to *node) bool {
			return apart(a.nodes[0])(from, to) && a.loses(90)
		},
		"90 % of one node's way in": func(a *announcers, from, to *node) bool { return to == a.nodes[0] && a.loses(90) },
		"half of all":               func(a *announcers, from, to *node) bool { return a.loses(50) },
		"nine of ten":               func(a *announcers, from, to *node) bool { return a.loses(90) },
		"all but two nodes": func(a *announcers, from, to *node) bool {
			return from == to || !slices.Contains(a.nodes[:2], from) || !slices.Contains(a.nodes[:2], to)
		},
		"one node, every three seconds": func(a *announcers, from, to *node) bool {
			return apart(a.nodes[0])(from, to) && a.clock/(3*time.Second)%2 == 0
		},
	} {
		duals(t, []int{2, 3, 5}, func(t *testing.T, a *announcers) {
			a.gossips = false
			a.cut = func(from, to *node) bool { return lost(a, from, to) }
			a.run(3*time.Second, nil)
			a.maxMoves()
			seen := a.watch(20 * time.Second)
			if moves := a.maxMoves(); seen.none+seen.several > seen.looks/200 || moves > 2 {
				t.Errorf("%s: %+v, %d moves; owners %q, before %q", name, seen, moves, a.owners, a.home)
			}
			a.gossips = true
			a.healed(t, name)
		})
	}
}

// loses reports whether one of so many in a hundred packets is lost.
func (w *world) loses(percent int) bool { return w.random.IntN(100) < percent }

// TestNodeSickOnBothNetworks has one node lose packets on all its links. It steps aside or keeps what it has, and never
// takes an address of a node that is well.
func TestNodeSickOnBothNetworks(t *testing.T) {
	for _, percent := range []int{50, 70, 90, 97} {
		for name, lost := range map[string]func(from, to, sick *node) bool{
			"in":   func(_, to, sick *node) bool { return to == sick },
			"both": func(from, to, sick *node) bool { return from == sick || to == sick },
		} {
			duals(t, []int{2, 3, 5}, func(t *testing.T, a *announcers) {
				sick := a.nodes[0]
				cut := func(from, to *node) bool { return lost(from, to, sick) && a.loses(percent) }
				a.gossips, a.cut, a.clients.cut = false, cut, cut
				what := fmt.Sprintf("%d %% %s", percent, name)
				a.never(t, time.Minute, what, func(home, owners string) bool { return home != "0 " && owners != home })
				a.gossips, a.clients.cut = true, nil
				a.healed(t, what)
			})
		}
	}
}
