package main

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/members"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// simAddresses is how many Services with an address each simulated cluster has.
const simAddresses = 12

// sim is speakers that hear each other, with the real plans and questions; the test decides who hears the API server.
type sim struct {
	t     *testing.T
	start time.Time
	spec  lb.State
	nodes map[string]*simNode
	// owner is who owned each address last; moves counts the changes, and double is how long each has had two that answer.
	owner  map[netip.Addr]string
	moves  map[netip.Addr]int
	double map[netip.Addr]time.Duration
}

type simNode struct {
	*owners
	fakeResponder
	older bool
	// spec is what it read last, and lost since when it does not hear the API server, zero if it does; hangs: that one hangs.
	spec  lb.State
	lost  time.Time
	hangs bool
	last  plan.Plan
	stale bool
}

func newSim(t *testing.T, names ...string) *sim {
	s := &sim{t: t, start: time.Now(), nodes: map[string]*simNode{}, owner: map[netip.Addr]string{}, moves: map[netip.Addr]int{},
		double: map[netip.Addr]time.Duration{}}
	s.spec = lb.State{
		Nodes: map[string]lb.Node{}, L2Advertisements: []lb.L2Advertisement{{Name: "l2"}},
		Pools: []lb.Pool{{Name: "lan", Ranges: []lb.Range{{From: addressNumber(0), To: addressNumber(255)}}}},
	}
	for i := range simAddresses {
		s.spec.Services = append(s.spec.Services, lb.Service{
			Key: lb.Key{Namespace: "default", Name: fmt.Sprint(i)}, Addresses: []netip.Addr{addressNumber(i)}, Serving: true,
			// Every node announced it at some time, so nobody probes.
			AnnouncedBy: map[netip.Addr]string{},
		})
	}
	for _, name := range names {
		s.spec.Nodes[name] = lb.Node{Name: name}
		n := &simNode{stale: true}
		n.owners = &owners{
			node: name, log: slog.New(slog.DiscardHandler), layer2: &n.fakeResponder, newer: map[netip.Addr]newer{},
			ask: func(member string, addrs []netip.Addr, leaves bool) { s.ask(name, member, addrs, leaves) }, members: s.metadata,
			plan: func() plan.Plan { return n.last }, age: n.heard, kick: func() { n.stale = true },
		}
		s.nodes[name] = n
	}
	s.change(func(*lb.State) {})
	s.run(5 * time.Second)
	clear(s.moves)
	clear(s.double)
	return s
}

// heard returns how long ago the node heard the API server: of one that hangs the kernel acknowledges, until client-go asks.
func (n *simNode) heard() time.Duration {
	away := time.Since(n.lost)
	if n.lost.IsZero() || n.hangs && away < 35*time.Second {
		return time.Second
	}
	return away
}

func (s *sim) metadata() map[string]lb.Member {
	out := map[string]lb.Member{}
	for name, n := range s.nodes {
		out[name] = lb.Member{API: n.contact.API()}
	}
	return out
}

func (s *sim) ask(from, member string, addrs []netip.Addr, leaves bool) {
	if n := s.nodes[member]; !n.older {
		owns, age := n.owners.Owns(addrs, leaves)
		s.nodes[from].Answered(members.Answer{From: member, Addresses: addrs, Leaves: leaves, Owns: owns, Age: age})
	}
}

// change changes the spec, and every node that hears the API server reads it.
func (s *sim) change(what func(*lb.State)) {
	spec := s.spec
	spec.Nodes = maps.Clone(spec.Nodes)
	what(&spec)
	s.spec = spec
	for _, n := range s.nodes {
		if n.lost.IsZero() {
			n.spec, n.stale = spec, true
		}
	}
}

func (s *sim) exclude(name string) {
	s.change(func(spec *lb.State) { spec.Nodes[name] = lb.Node{Name: name, Excluded: true} })
}

// lose and find cut nodes off the API server, and bring them back.
func (s *sim) lose(names ...string) {
	for _, name := range names {
		s.nodes[name].lost = time.Now()
	}
}

func (s *sim) find(names ...string) {
	for _, name := range names {
		n := s.nodes[name]
		n.lost, n.spec, n.stale = time.Time{}, s.spec, true
	}
}

// run lets time pass.
func (s *sim) run(d time.Duration) {
	s.t.Helper()
	for range int(d / askInterval) {
		for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
			n := s.nodes[name]
			before := n.contact.API()
			if !n.older {
				n.turn()
			}
			if before != n.contact.API() {
				for _, other := range s.nodes {
					other.stale = true
				}
			}
		}
		for name, n := range s.nodes {
			if n.stale {
				s.plan(name, n)
			}
		}
		s.look()
		time.Sleep(askInterval)
	}
}

// plan carries a new plan of a node out, as layer2 does.
func (s *sim) plan(name string, n *simNode) {
	n.stale = false
	state := n.spec
	state.Members = map[string]bool{}
	for name := range s.nodes {
		state.Members[name] = true
	}
	applyMembers(&state, s.metadata())
	state.Links = nil
	state.Here.Newer = n.newerOwners()
	state.Here.Previous = &lb.Previous{Owners: n.last.Owners}
	n.last = plan.ForNode(name, state)
	answered := slices.Concat(n.owns, n.handing)
	n.owns, n.handing = nil, nil
	for _, a := range n.last.Announcements {
		n.owns = append(n.owns, a.Address)
	}
	for _, a := range answered {
		if slices.Contains(n.last.Yield, a) {
			n.handing = append(n.handing, a)
		}
	}
}

// look counts who owns what.
func (s *sim) look() {
	s.t.Helper()
	for i := range simAddresses {
		a := addressNumber(i)
		var owns []string
		answers := 0
		for name, n := range s.nodes {
			if slices.Contains(n.owns, a) {
				owns = append(owns, name)
			}
			if slices.Contains(n.owns, a) || slices.Contains(n.handing, a) {
				answers++
			}
		}
		if answers == 0 {
			s.t.Errorf("after %v nobody answers for %s", time.Since(s.start), a)
		}
		if answers > 1 {
			s.double[a] += askInterval
		}
		if len(owns) == 1 && owns[0] != s.owner[a] {
			s.owner[a] = owns[0]
			s.moves[a]++
		}
	}
}

// most returns the highest number of moves of an address, and the longest time with two that answer.
func (s *sim) most() (moves int, double time.Duration) {
	for _, n := range s.moves {
		moves = max(moves, n)
	}
	for _, d := range s.double {
		double = max(double, d)
	}
	return moves, double
}

func (s *sim) ownedBy(name string) (out int) {
	for _, owner := range s.owner {
		if owner == name {
			out++
		}
	}
	return out
}

// TestAwayFromAPI: histories of speakers that hear each other, of which some do not hear the API server. Nobody ever stops without
// another one that answers.
//
// Trap: a node that was excluded does not know, and stays a second owner for good.
func TestAwayFromAPI(t *testing.T) {
	four := []string{"w1", "w2", "w3", "w4"}
	for _, tt := range []struct {
		name  string
		nodes []string
		do    func(s *sim)
		// moves is how often an address may move, double how long two may answer for it; left: w1 owns nothing in the end.
		moves  int
		double time.Duration
		left   bool
	}{
		{"one is away, and nothing changes", four[:3], func(s *sim) { s.lose("w1"); s.run(10 * time.Minute) }, 1, time.Second, true},
		{"it is away for less than the time", four[:3], func(s *sim) { s.lose("w1"); s.run(33 * time.Second); s.find("w1"); s.run(time.Minute) }, 0, 0, false},
		{"it comes back", four[:3], func(s *sim) { s.lose("w1"); s.run(time.Minute); s.find("w1"); s.run(10 * time.Minute) }, 2, 2 * time.Second, false},
		{"excluded at once", four[:3], func(s *sim) { s.lose("w1"); s.exclude("w1"); s.run(30 * time.Second) }, 1, 9 * time.Second, true},
		{"excluded later", four[:3], func(s *sim) { s.lose("w1"); s.run(20 * time.Second); s.exclude("w1"); s.run(time.Minute) }, 1, 2 * time.Second, true},
		{"excluded, and the API server hangs", four[:3], func(s *sim) { s.nodes["w1"].hangs = true; s.lose("w1"); s.exclude("w1"); s.run(time.Minute) }, 1,
			38 * time.Second, true},
		{"excluded, away and back", four[:3], func(s *sim) {
			s.lose("w1")
			s.exclude("w1")
			s.run(20 * time.Second)
			s.find("w1")
			s.run(time.Minute)
		}, 1, 9 * time.Second, true},
		{"excluded and admitted again while away", four[:3], func(s *sim) {
			s.lose("w1")
			s.exclude("w1")
			s.run(20 * time.Second)
			s.change(func(spec *lb.State) { spec.Nodes["w1"] = lb.Node{Name: "w1"} })
			s.run(time.Minute)
		}, 3, 9 * time.Second, true},
		{"the other one is away too, later", four[:2], func(s *sim) {
			s.lose("w1")
			s.exclude("w1")
			s.run(20 * time.Second)
			s.lose("w2")
			s.run(10 * time.Minute)
		}, 1, 9 * time.Second, true},
		{"the newer owner is drained", four[:3], func(s *sim) {
			s.lose("w1")
			s.exclude("w1")
			s.run(20 * time.Second)
			s.change(func(spec *lb.State) { spec.Nodes["w2"] = lb.Node{Name: "w2", Draining: true} })
			s.run(time.Minute)
		}, 2, 9 * time.Second, true},
		{"1 of 2", four[:2], func(s *sim) { s.lose("w1"); s.run(10 * time.Minute) }, 1, time.Second, true},
		{"2 of 4", four, func(s *sim) { s.lose("w1", "w2"); s.run(10 * time.Minute) }, 1, time.Second, true},
		{"3 of 4", four, func(s *sim) { s.lose("w1", "w2", "w3"); s.run(10 * time.Minute) }, 0, 0, false},
		{"3 of 4, and one of them is excluded", four, func(s *sim) {
			s.lose("w1", "w2", "w3")
			s.exclude("w1")
			s.run(10 * time.Minute)
		}, 1, 9 * time.Second, false},
		{"all at once, back within half a minute", four, func(s *sim) {
			s.lose(four...)
			s.run(10 * time.Minute)
			for _, name := range four {
				s.find(name)
				s.run(8 * time.Second)
			}
			s.run(10 * time.Minute)
		}, 0, 0, false},
		{"all, within 60 s of each other", four, func(s *sim) {
			for _, name := range four {
				s.lose(name)
				s.run(20 * time.Second)
			}
			s.run(10 * time.Minute)
		}, 2, 2 * time.Second, false},
		{"on and off every 15 s", four[:3], func(s *sim) {
			for range 20 {
				s.lose("w1")
				s.run(15 * time.Second)
				s.find("w1")
				s.run(15 * time.Second)
			}
		}, 0, 0, false},
		{"on and off every minute", four[:3], func(s *sim) {
			for range 30 {
				s.lose("w1")
				s.run(time.Minute)
				s.find("w1")
				s.run(time.Minute)
			}
		}, 6, 3 * time.Second, true},
		{"an older speaker owns", four[:3], func(s *sim) {
			s.nodes["w1"].older = true
			s.nodes["w1"].contact.says.Store(uint32(lb.APIUnknown))
			s.lose("w1")
			s.run(10 * time.Minute)
		}, 0, 0, false},
		{"excluded, and one of the others is older", four[:3], func(s *sim) {
			s.nodes["w2"].older = true
			s.nodes["w2"].contact.says.Store(uint32(lb.APIUnknown))
			s.lose("w1")
			s.exclude("w1")
			s.run(time.Minute) // as before, for what the older one owns
		}, 1, time.Minute, false},
		{"older speakers are half of the others", four[:3], func(s *sim) {
			s.nodes["w3"].older = true
			s.nodes["w3"].contact.says.Store(uint32(lb.APIUnknown))
			s.lose("w1")
			s.run(10 * time.Minute)
		}, 0, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, tt.nodes...)
				if s.ownedBy("w1") == 0 {
					t.Fatal("w1 owns nothing, so nothing is tested")
				}
				tt.do(s)
				moves, double := s.most()
				t.Logf("%d moves at most, two owners for %v at most", moves, double)
				if moves > tt.moves || double > tt.double {
					t.Errorf("an address moved %d times and had two owners for %v; want %d and %v at most", moves, double, tt.moves, tt.double)
				}
				if left := s.ownedBy("w1") == 0; left != tt.left {
					t.Errorf("w1 owns %d in the end", s.ownedBy("w1"))
				}
			})
		})
	}
}
