package detect

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestPrivateNetworkFailsBesideLink cuts all nodes off from each other on the network of the heartbeats, while frames
// pass on the clients' network: nothing moves. A node that loses its power meanwhile is replaced soon, whether foreign
// machines are there or not.
func TestPrivateNetworkFailsBesideLink(t *testing.T) {
	twoNetworks(t, []int{2, 3, 9}, func(t *testing.T, a *announcers) {
		a.gossips = false
		a.cut = func(from, to *node) bool { return true }
		a.at(a.clock+6*time.Second, a.gossip)
		if seen := a.watch(20 * time.Second); seen.none+seen.several > 0 || a.maxMoves() > 0 {
			t.Errorf("%+v; owners %q, before %q", seen, a.owners, a.home)
		}

		first := a.nodes[0]
		first.stop()
		took, ok := a.within(5*time.Second, func() bool { return a.isServed("0 ") })
		t.Logf("owners after %v", took)
		isKnown := len(a.nodes) > 2 || a.clients.hasForeign
		if isKnown && (!ok || took > 500*ms) {
			t.Errorf("owners %q after %v", a.owners, took)
		}
		if seen := a.watch(20 * time.Second); isKnown && seen.none > 0 || seen.several > 0 {
			t.Errorf("%+v; owners %q, before %q", seen, a.owners, a.home)
		}

		a.gossips = true
		first.start()
		a.healed(t, "the private network failed")
	})
}

// isServed reports whether every address of a home has an owner.
func (a *announcers) isServed(home string) bool {
	a.look()
	for j, h := range a.home {
		if h == home && a.owners[j] == "" {
			return false
		}
	}
	return true
}

// TestClientPortFails has one port on the clients' network lose frames while heartbeats go on: others own what its node
// had within a second, no address has two owners for longer than gossip takes, none of another node moves, and all is
// as before soon after.
func TestClientPortFails(t *testing.T) {
	for name, lost := range map[string]func(a *announcers, from, to *node) bool{
		"dead":             func(a *announcers, from, to *node) bool { return apart(a.nodes[0])(from, to) },
		"its way out":      func(a *announcers, from, to *node) bool { return from == a.nodes[0] },
		"its way in":       func(a *announcers, from, to *node) bool { return to == a.nodes[0] },
		"95 % both ways":   func(a *announcers, from, to *node) bool { return apart(a.nodes[0])(from, to) && a.loses(95) },
		"95 % its way out": func(a *announcers, from, to *node) bool { return from == a.nodes[0] && a.loses(95) },
	} {
		twoNetworks(t, []int{2, 3, 5}, func(t *testing.T, a *announcers) {
			a.clients.cut = func(from, to *node) bool { return lost(a, from, to) }
			began := a.clock
			took, ok := a.within(5*time.Second, func() bool {
				a.look()
				for j, h := range a.home {
					if h == "0 " && a.owners[j] == "0 " {
						return false
					}
				}
				return true
			})
			isKnown := len(a.nodes) > 2 || a.clients.hasForeign && name != "its way out"
			if isKnown && (!ok || took > time.Second && name != "95 % both ways" && name != "95 % its way out") {
				t.Errorf("%s: owners %q after %v", name, a.owners, took)
			}
			t.Logf("%s: moved after %v", name, took)
			a.never(t, 30*time.Second, name, func(home, owners string) bool {
				return home != "0 " && owners != home || owners == "" || len(owners) > len("12 ") && a.clock-began > 2*time.Second
			})
			a.clients.cut = nil
			a.run(15*time.Second, nil)
			a.healed(t, fmt.Sprint("a client port failed: ", name))
		})
	}
}

// TestFewShareLink has three of many nodes on the clients' network. One of them loses its port there, its private port,
// or its power: each address has one owner soon, and none of another node moves.
func TestFewShareLink(t *testing.T) {
	for _, n := range []int{12, 30} {
		for name, fault := range map[string]struct {
			do     func(a *announcers)
			within time.Duration
		}{
			"clients' port": {func(a *announcers) { a.clients.cut = apart(a.nodes[0]) }, 1500 * ms},
			"private port":  {func(a *announcers) { a.cut = apart(a.nodes[0]) }, time.Second},
			"power":         {func(a *announcers) { a.nodes[0].stop() }, 300 * ms},
		} {
			t.Run(fmt.Sprintf("%d nodes, %s", n, name), func(t *testing.T) {
				a := newTwoNetworks(n, 3, true, true)
				fault.do(a)
				took, ok := a.within(5*time.Second, func() bool {
					a.look()
					return !slices.ContainsFunc(a.owners, func(owners string) bool { return owners == "0 " || owners == "" })
				})
				t.Logf("moved after %v", took)
				if !ok || took > fault.within {
					t.Errorf("owners %q after %v", a.owners, took)
				}
				a.run(time.Second, nil)
				a.never(t, 20*time.Second, name, func(home, owners string) bool {
					return len(owners) != len("1 ") || owners == "0 " || home != "0 " && owners != home
				})
			})
		}
	}
}

// TestEveryClientsNetworkOfThree has every network of directed links befall the clients' network of three nodes, while
// heartbeats between addresses go on: each address has one owner, and does not move to and fro. All is as before soon
// after.
func TestEveryClientsNetworkOfThree(t *testing.T) {
	for _, clientsGateway := range []bool{true, false} {
		a := newTwoNetworks(3, 3, true, clientsGateway)
		var out tally
		for _, l := range networks(3, 3, rand.New(rand.NewPCG(1, 0))) {
			a.clients.cut = a.cutOf(l)
			hit := a.clock
			a.run(4*time.Second, nil)
			one := out.count(a.owners)
			rest, moves := a.rest(hit), a.maxMoves()
			out.rest, out.moves = max(out.rest, rest), max(out.moves, moves)
			if !one || rest > 2500*ms || moves > 2 {
				t.Errorf("%s: the owners are %q, at rest after %v, %d moves", l, a.owners, rest, moves)
			}
			a.clients.cut = nil
			a.healed(t, l.String())
			a.maxMoves()
		}
		t.Logf("gateway %t: %+v", clientsGateway, out)
	}
}

// TestEveryPrivateNetworkBesideLink has every network befall the heartbeats between the addresses of three nodes, which
// hear each other on the clients' network. Each address has one owner where messages get from every node to every
// other, and all is as before soon after.
func TestEveryPrivateNetworkBesideLink(t *testing.T) {
	for _, gateway := range []bool{true, false} {
		a := newTwoNetworks(3, 3, gateway, false)
		var out tally
		for _, l := range networks(3, 3, rand.New(rand.NewPCG(1, 0))) {
			a.cut = a.cutOf(l)
			a.run(4*time.Second, nil)
			one := out.count(a.owners)
			if l.whole() && !one {
				t.Errorf("%s: the owners are %q", l, a.owners)
			}
			a.healed(t, l.String())
		}
		t.Logf("gateway %t: %+v", gateway, out)
	}
}

// cutOf returns the cut of a network between nodes, which foreign machines hear and are heard by.
func (a *announcers) cutOf(l links) func(from, to *node) bool {
	return func(from, to *node) bool {
		i, j := slices.Index(a.nodes, from), slices.Index(a.nodes, to)
		return i >= 0 && j >= 0 && !l.up(i, j)
	}
}

// TestBothNetworksOfThree has samples of faults befall both networks at once: all is as before soon after.
func TestBothNetworksOfThree(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	a := newTwoNetworks(3, 3, true, true)
	for range 300 {
		private, clients := links{3, random.IntN(1 << 6)}, links{3, random.IntN(1 << 6)}
		a.cut, a.clients.cut = a.cutOf(private), a.cutOf(clients)
		a.run(4*time.Second, nil)
		a.clients.cut = nil
		a.healed(t, fmt.Sprintf("private %s, clients' %s", private, clients))
	}
}

// TestOthersLosePowerBesideLink has all other nodes lose their power at once: that is no fault of the last one's links,
// and it keeps what it has when they are back.
func TestOthersLosePowerBesideLink(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		a := newTwoNetworks(n, n, true, false)
		for _, o := range a.nodes[1:] {
			o.stop()
		}
		a.run(30*time.Second, func() {
			if a.nodes[0].end.isSilent {
				t.Fatalf("%d nodes: the last one leaves its link to nodes that are dead", n)
			}
		})
		for _, o := range a.nodes[1:] {
			o.start()
		}
		a.run(2*time.Second, nil) // until gossip has found them
		a.never(t, 20*time.Second, fmt.Sprint(n, " nodes"), func(home, owners string) bool {
			return home == "0 " && owners != home
		})
	}
}

// TestReturnWhilePrivateNetworkFails switches a node off and on again while the nodes hear each other on the clients'
// network alone: it has what it had again, and no address has two owners for long.
func TestReturnWhilePrivateNetworkFails(t *testing.T) {
	for _, n := range []int{3, 9} {
		a := newTwoNetworks(n, n, false, false)
		a.gossips = false
		a.cut = func(from, to *node) bool { return true }
		a.run(20*time.Second, nil)
		first := a.nodes[0]
		first.stop()
		a.run(5*time.Second, nil)
		first.start()
		a.run(5*time.Second, nil)
		if seen := a.watch(20 * time.Second); seen.none+seen.several > 0 || !slices.Equal(a.owners, a.home) {
			t.Errorf("%d nodes: %+v; owners %q, before %q", n, seen, a.owners, a.home)
		}
		for _, m := range first.d.members(first.clock())[1:] {
			if m.Status != Alive || !m.Silent {
				t.Errorf("%d nodes: to the node that is back %s is %s, silent %t", n, m.Name, m.Status, m.Silent)
			}
		}
	}
}

// TestLinkForgetsDeadNode has a node lose its power while the private network fails, and the other nodes forget its end
// of the link: it stays dead until it is heard again.
func TestLinkForgetsDeadNode(t *testing.T) {
	a := newTwoNetworks(3, 3, false, false)
	a.gossips = false
	a.cut = func(from, to *node) bool { return true }
	a.run(20*time.Second, nil)
	first, others := a.nodes[0], a.nodes[1:]
	first.stop()
	a.run(5*time.Second, nil)
	for _, o := range others {
		o.end.d.SetPeers(o.clock(), []Peer{{Name: others[0].name, Gossip: true}, {Name: others[1].name, Gossip: true}})
	}
	a.run(5*time.Second, func() {
		for _, o := range others {
			if s := o.sees(first); s != Dead {
				t.Fatalf("to %s the node is %s", o.name, s)
			}
		}
	})

	first.start()
	for _, o := range others {
		o.setLinkPeers()
	}
	a.run(20*time.Second, nil)
	for _, o := range others {
		if s := o.sees(first); s != Alive {
			t.Errorf("to %s the node that is back is %s", o.name, s)
		}
	}
}

// TestHelloOfPeerThatKnowsAnotherEnd has no packets come on a link, where hellos do: the other nodes send theirs to
// another interface of this node. After a while they are not expected any more.
func TestHelloOfPeerThatKnowsAnotherEnd(t *testing.T) {
	a := newTwoNetworks(3, 3, true, false)
	first, others := a.nodes[0], a.nodes[1:]
	hear := func() LinkState {
		for _, o := range others {
			first.end.d.ReceiveHello(first.clock(), o.id)
		}
		return first.end.d.LinkState(first.clock(), first.d)
	}
	if s := hear(); s != LinkWorks {
		t.Errorf("at first the state is %d", s)
	}
	a.clients.cut = apart(first)
	a.run(unexpectedTime-time.Second, nil)
	if s := hear(); s != LinkFails {
		t.Errorf("without packets for a short time the state is %d", s)
	}
	a.run(2*time.Second, nil)
	if s := hear(); s != LinkUnknown {
		t.Errorf("without packets for long the state is %d", s)
	}
	a.clients.cut = nil
	a.run(time.Second, nil)
	if s := hear(); s != LinkWorks {
		t.Errorf("when packets come again the state is %d", s)
	}
}

// TestPhantomsWatchNothing lists peers that are not there, as old hellos do that are sent again on another link:
// after a while none of them takes the place of a watcher.
func TestPhantomsWatchNothing(t *testing.T) {
	w := settled(t, 1, 8)
	var peers []Peer
	for _, o := range w.nodes {
		peers = append(peers, Peer{Name: o.name, Gossip: true})
	}
	for i := range 50 {
		peers = append(peers, Peer{Name: fmt.Sprint("phantom-", i), Gossip: true})
	}
	for _, n := range w.nodes {
		n.d.SetPeers(n.clock(), peers)
	}
	w.after(newPeerTime + time.Second)
	for _, n := range w.nodes {
		watchers := 0
		for _, p := range n.d.ring {
			if p.isWatcher {
				watchers++
			}
			if p.isWatcher && p.lastHeard == 0 {
				t.Errorf("%s sends its heartbeats to %s, which is not there", n.name, p.name)
			}
		}
		if watchers != maxWatchers {
			t.Errorf("%s has %d watchers", n.name, watchers)
		}
	}
}

// A node is alive if it is alive on any link, and dead only if it is dead on every one on which it was heard.
func TestOnLinks(t *testing.T) {
	for _, tt := range []struct {
		onLinks []Status
		want    Status
	}{
		{nil, Unknown},
		{[]Status{Unknown, Unknown}, Unknown},
		{[]Status{Dead}, Dead},
		{[]Status{Dead, Alive}, Alive},
		{[]Status{Alive, Dead}, Alive},
		{[]Status{Dead, Unknown}, Dead},
		{[]Status{SpeakerDown, Dead}, SpeakerDown},
		{[]Status{Left, HoldDown}, HoldDown},
	} {
		d := &Detector{}
		for _, s := range tt.onLinks {
			p := &peerState{}
			p.Status = s
			if s != Unknown {
				p.lastHeard = ms
			}
			d.links = append(d.links, &Detector{peers: map[NodeID]*peerState{1: p}})
		}
		if got := d.onLinks(&peerState{id: 1}); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.onLinks, got, tt.want)
		}
	}
}
