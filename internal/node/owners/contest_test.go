package owners

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// simWire is the link of the simulated clients, on which all nodes receive each other.
type simWire struct {
	sim  *sim
	node *simNode
	// claims has when each claim was seen.
	claims map[lb.Question]time.Time
	asked  int
}

func simMAC(node string) lb.MAC { return lb.MAC{2, 0, 0, 0, 0, node[1]} }

func simContest(node string, a netip.Addr) lb.Question {
	return lb.Question{Link: "eth1", MAC: simMAC(node), Address: a, Echo: true, Contest: true}
}

// announce has the other nodes that answer for these addresses receive the claim of a node. A node that may have to
// yield asks after half a second which other node owns them, and any other node after 5 s, as layer2 does.
func (s *sim) announce(from string, taken []netip.Addr) {
	for name, n := range s.nodes {
		if name == from {
			continue
		}
		for _, a := range taken {
			n.claims[simContest(from, a)] = time.Now()
			n.due = time.Time{}
			n.EndHandovers([]netip.Addr{a})
			check := 5 * time.Second
			if s.nodes[from].Precedence().MayYield() {
				check = 500 * time.Millisecond
			}
			s.nodes[from].claims[simContest(name, a)] = time.Now().Add(check)
		}
	}
}

// Claims implements Wire.
func (w *simWire) Claims() (out []lb.Question) {
	for q, at := range w.claims {
		answers := slices.Contains(w.node.owns, q.Address) || slices.Contains(w.node.handing, q.Address)
		if age := time.Since(at); age >= 0 && age < time.Minute && answers {
			out = append(out, q)
		}
	}
	return out
}

// Ask implements Wire.
func (w *simWire) Ask(_ context.Context, questions []lb.Question, _ time.Duration) []int {
	w.asked++
	out := make([]int, len(questions))
	for i, q := range questions {
		for name, n := range w.sim.nodes {
			isAsked := simMAC(name) == q.MAC && slices.Contains(n.owns, q.Address)
			if isAsked && !n.older && n.Precedence().Over(w.node.Precedence()) {
				out[i] = 3
			}
		}
	}
	return out
}

// silentLink returns a view in which the client link of a node is silent.
func silentLink(node string, names ...string) func(*lb.State) {
	return func(s *lb.State) {
		s.Links = map[string][]lb.Link{}
		for _, name := range names {
			s.Links[name] = []lb.Link{{
				Name: "eth1", MAC: simMAC(name), Default: true, Silent: name == node,
				Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")},
			}}
		}
	}
}

// TestContests has nodes whose views differ, and whose questions by the membership get lost. They receive each other on
// the link of the clients: of two owners there one leaves within 2 s, and takes nothing back before it should.
func TestContests(t *testing.T) {
	const limit = 2 * time.Second
	for _, tt := range []struct {
		name  string
		steps func(*sim)
		moves int
		owner string
		want  time.Duration
	}{
		{"a held down node believes that the link of another is silent", func(s *sim) {
			s.nodes["w3"].view = silentLink("w1", "w1", "w3")
			s.hold("w3")
			s.run(10 * time.Minute)
		}, 1, "w1", limit},
		{"it is held down only later", func(s *sim) {
			s.nodes["w3"].view = silentLink("w1", "w1", "w3")
			s.replan()
			s.run(8 * time.Second)
			clear(s.double)
			s.hold("w3")
			s.run(10 * time.Minute)
		}, 2, "w1", limit},
		{"it learns what is true while it is held down", func(s *sim) {
			s.nodes["w3"].view = silentLink("w1", "w1", "w3")
			s.hold("w3")
			s.run(10 * time.Second)
			s.nodes["w3"].view = nil
			s.replan()
			s.run(time.Minute)
		}, 1, "w1", limit},
		{"it is not held down any more", func(s *sim) {
			s.nodes["w3"].view = silentLink("w1", "w1", "w3")
			s.hold("w3")
			s.run(10 * time.Second)
			s.nodes["w3"].view, s.deaf = nil, false
			s.hold()
			s.run(time.Minute)
		}, 2, "", limit},
		{"the winner leaves the addresses to it", func(s *sim) {
			s.nodes["w3"].view = silentLink("w1", "w1", "w3")
			s.hold("w3")
			s.run(10 * time.Second)
			s.change(func(spec *lb.State) { spec.Nodes["w1"] = lb.Node{Name: "w1", Excluded: true} })
			s.run(contestAge + time.Second)
		}, 2, "w3", limit},
		{"it takes addresses whose owner announced them long ago", func(s *sim) {
			s.hold("w3")
			s.run(time.Minute)
			s.nodes["w3"].view = silentLink("w1", "w1", "w3")
			s.replan()
			s.run(10 * time.Minute)
		}, 2, "w1", limit},
		{"a held down node is the only one left, and the other learns it late", func(s *sim) {
			s.deaf = false
			s.hold("w3")
			s.run(10 * time.Second)
			s.lateSpec("w1", time.Second, func(spec *lb.State) { spec.Nodes["w1"] = lb.Node{Name: "w1", Excluded: true} })
			s.run(time.Minute)
		}, 3, "w3", 3 * time.Second},
		{"the other has an old spec", func(s *sim) {
			s.hold("w3")
			s.run(10 * time.Second)
			s.nodes["w1"].lost = time.Now()
			s.change(func(spec *lb.State) { spec.Nodes["w1"] = lb.Node{Name: "w1", Excluded: true} })
			s.run(30 * time.Second)
		}, 2, "w3", limit},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, "w1", "w3")
				if s.ownedBy("w1") == 0 || s.ownedBy("w3") == 0 {
					t.Fatal("a node owns nothing, so nothing is tested")
				}
				s.deaf = true
				tt.steps(s)
				moves, double := s.worst()
				t.Logf("%d moves at most, two answer for %v at most", moves, double)
				if moves > tt.moves || double > tt.want {
					t.Errorf("%d moves, two answer for %v; want %d and %v at most", moves, double, tt.moves, tt.want)
				}
				if tt.owner != "" && s.ownedBy(tt.owner) != simAddresses {
					t.Errorf("%s owns %d in the end", tt.owner, s.ownedBy(tt.owner))
				}
			})
		})
	}
}

// hold has only these nodes held down.
func (s *sim) hold(names ...string) {
	s.held = map[string]bool{}
	for _, name := range names {
		s.held[name] = true
	}
	s.replan()
}

func (s *sim) replan() {
	for _, n := range s.nodes {
		n.stale = true
	}
}

// lateSpec changes the spec, which one node reads later than the others.
func (s *sim) lateSpec(name string, by time.Duration, change func(*lb.State)) {
	n := s.nodes[name]
	old := n.spec
	s.change(change)
	n.spec, n.stale = old, false
	s.run(by)
	n.spec, n.stale = s.spec, true
}

// TestForgedClaims: any machine can claim addresses in the name of a speaker. A node leaves them only to a speaker that
// answers, and does not ask where it hears the others and the API server.
func TestForgedClaims(t *testing.T) {
	for _, isHeldDown := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, "w1", "w3")
			if isHeldDown {
				s.nodes["w3"].view = silentLink("w1", "w1", "w3")
				s.nodes["w1"].view = s.nodes["w3"].view
				s.hold("w3")
				s.run(5 * time.Second)
				clear(s.moves)
			}
			w3 := s.nodes["w3"]
			w3.asked = 0
			for range 50 {
				for i := range simAddresses {
					w3.claims[simContest("w1", addressNumber(i))] = time.Now()
					w3.claims[simContest("x9", addressNumber(i))] = time.Now()
				}
				s.run(200 * time.Millisecond)
			}
			if moves, _ := s.worst(); moves > 0 || isHeldDown != (w3.asked > 0) {
				t.Errorf("held down: %v; %d moves, asked %d times", isHeldDown, moves, w3.asked)
			}
		})
	}
}

// TestManyContests: many claims, which any machine may have forged, are asked about in shares.
func TestManyContests(t *testing.T) {
	const count = 2*maxContests + 7
	asked := map[netip.Addr]bool{}
	wire := &countingWire{ask: func(questions []lb.Question) {
		before := len(asked)
		for _, q := range questions {
			asked[q.Address] = true
		}
		if fresh := len(asked) - before; fresh > maxContests {
			t.Errorf("%d claims were checked at once", fresh)
		}
	}}
	for i := range count {
		wire.claims = append(wire.claims, simContest("w1", addressNumber(i)))
	}
	kicks := 0
	o := New(Config{
		Node: "w3", Log: slog.New(slog.DiscardHandler), Layer2: &fakeResponder{}, Wire: wire,
		Age: func() time.Duration { return 0 }, Changed: func() { kicks++ }, Plan: func() plan.Plan { return plan.Plan{} },
		Peers: fakePeers{func(string, []netip.Addr, bool) {}, func() map[string]lb.Member {
			return map[string]lb.Member{"w1": {Links: []lb.Link{{MAC: simMAC("w1")}}}}
		}},
	})
	o.heldDown.Store(true)
	for range 3 {
		_, _ = o.turn(t.Context())
	}
	if len(asked) != count || len(o.Newer()) != count || kicks == 0 {
		t.Errorf("of %d claims %d were asked about, %d addresses are left, %d plans", count, len(asked), len(o.newer), kicks)
	}
	o.heldDown.Store(false)
	if _, _ = o.turn(t.Context()); len(o.Newer()) != 0 {
		t.Errorf("%d addresses are left to another node without a reason", len(o.newer))
	}
}

// countingWire has speakers that win every contest.
type countingWire struct {
	claims []lb.Question
	ask    func([]lb.Question)
}

// Claims implements Wire.
func (w *countingWire) Claims() []lb.Question { return w.claims }

// Ask implements Wire.
func (w *countingWire) Ask(_ context.Context, questions []lb.Question, _ time.Duration) []int {
	w.ask(questions)
	return slices.Repeat([]int{3}, len(questions))
}
