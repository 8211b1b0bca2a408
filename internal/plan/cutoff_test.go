package plan

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestCutOff: what w1 announces when it hears nobody else, by ARP and NDP and by
// BGP. With all members it owns v4 and v6 by its hash.
func TestCutOff(t *testing.T) {
	const known, doubt = true, false
	lose := func(s *lb.State, known bool, nodes ...string) {
		s.Here.CutOffFrom = map[string]bool{}
		for _, n := range nodes {
			s.Here.CutOffFrom[n] = known
		}
	}
	served := func(s *lb.State, nodes ...string) {
		s.Services[0].ServingNodes = map[string]bool{}
		for _, n := range nodes {
			s.Services[0].ServingNodes[n] = true
		}
	}
	had := map[netip.Addr]bool{v4: true, v6: true}
	const all, routes, none = "announce 2 route 2", "announce 0 route 2", "announce 0 route 0"
	for _, tt := range []struct {
		name   string
		change func(*lb.State)
		want   string
		here   lb.Reason
	}{
		{"nobody is lost", func(*lb.State) {}, all, lb.Announced},
		{"the node that serves is lost", func(s *lb.State) { lose(s, known, "w2", "w3") }, none, lb.CutOff},
		{"also for one that announced", func(s *lb.State) { lose(s, known, "w2", "w3"); s.Here.Announced = had }, none, lb.CutOff},
		{"in doubt nothing is taken", func(s *lb.State) { lose(s, doubt, "w2", "w3") }, routes, lb.CutOff},
		{"in doubt nothing is given up", func(s *lb.State) { lose(s, doubt, "w2", "w3"); s.Here.Announced = had }, all, lb.Announced},
		{"one is known to be lost, the other one is in doubt", func(s *lb.State) {
			served(s, "w2", "w3")
			s.Here = lb.Here{CutOffFrom: map[string]bool{"w2": known, "w3": doubt}}
		}, routes, lb.CutOff},
		{"one of those that serve is within reach", func(s *lb.State) { served(s, "w2", "w3"); lose(s, known, "w2") }, all, lb.Announced},
		{"a node without a speaker serves", func(s *lb.State) { served(s, "w2", "w9"); lose(s, known, "w2", "w3") }, all, lb.Announced},
		{"an endpoint of its own", func(s *lb.State) { served(s, "w1", "w2"); lose(s, known, "w2", "w3") }, all, lb.Announced},
		{"an endpoint on no node", func(s *lb.State) { s.Services[0].ServingAnywhere = true; lose(s, known, "w2", "w3") }, all, lb.Announced},
		{"only endpoints on no node", func(s *lb.State) { served(s); lose(s, known, "w2", "w3") }, all, lb.Announced},
		{"no endpoint that serves", func(s *lb.State) { s.Services[0].Serving = false; lose(s, known, "w2", "w3") }, none, lb.NoServingEndpoint},
		{"policy Local with an endpoint of its own", func(s *lb.State) {
			served(s, "w1", "w2")
			s.Services[0].Local = true
			lose(s, known, "w2", "w3")
		}, all, lb.Announced},
		{"policy Local without", func(s *lb.State) {
			s.Services[0].Local = true
			lose(s, known, "w2", "w3")
		}, none, lb.NoEligibleNode},
		{"another Service on the address is within reach", func(s *lb.State) {
			other := s.Services[0]
			other.Key.Name, other.ServingNodes = "wec", map[string]bool{"w1": true}
			s.Services = append(s.Services, other)
			lose(s, known, "w2", "w3")
		}, all, lb.Announced},
		{"nor does it stand in for a mute neighbour", func(s *lb.State) {
			s.Members = map[string]bool{"w1": true, "w4": true}
			s.SpeakerDown = map[string]bool{"w4": true}
			s.Nodes["w4"] = lb.Node{Name: "w4"}
			s.HeldDown = map[string]bool{"w1": true}
			s.Links = map[string][]lb.Link{"w4": {link("eth0", "192.0.2.0/24", "2001:db8::/64")}}
			lose(s, known, "w2", "w3")
		}, none, lb.CutOff},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := testState()
			s.Members = map[string]bool{"w1": true}
			tt.change(&s)
			p := ForNode("w1", s)
			got := strings.Join([]string{"announce", digit(len(p.Announcements)), "route", digit(len(p.Routes))}, " ")
			if got != tt.want || p.Verdicts[0].L2.Here != tt.here {
				t.Errorf("%s, here %s; want %s, %s", got, p.Verdicts[0].L2.Here, tt.want, tt.here)
			}
			if len(p.Yield) != 0 {
				t.Errorf("it waits for somebody to take %v over", p.Yield)
			}
		})
	}
}

func digit(n int) string { return string(rune('0' + n)) }

// A side of a partition that stands aside leaves to the others what it cannot serve itself.
func TestCutOffStandsAside(t *testing.T) {
	s := testState()
	s.HeldDown = map[string]bool{"w1": true}
	s.Here.CutOffFrom = map[string]bool{"w2": true, "w3": true}
	p := ForNode("w1", s)
	if diff := cmp.Diff([]netip.Addr{v4, v6}, p.Yield, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if got := p.Verdicts[0].L2; got.Here != lb.NotOwner || got.Writer {
		t.Errorf("here %s, writer %t; want NotOwner, the other side writes", got.Here, got.Writer)
	}
}

// TestKept: what a side of a partition that stands aside goes on with. Of w1 to w3
// only w1 is here.
func TestKept(t *testing.T) {
	side := func(first bool, refuses ...string) lb.Side {
		out := lb.Side{Precedes: first, Refuses: map[string]bool{}}
		for _, n := range refuses {
			out.Refuses[n] = true
		}
		return out
	}
	const yes, no = "announce 2 route 2", "announce 0 route 2"
	for _, tt := range []struct {
		name  string
		sides []lb.Side
		more  func(*lb.State)
		want  string
	}{
		{"they do not reach it", []lb.Side{side(true, "w1")}, nil, yes},
		{"they are most", []lb.Side{side(true)}, nil, no},
		{"one of them does not know yet", []lb.Side{side(true, "w1"), side(true)}, nil, no},
		{"a third side goes behind this one", []lb.Side{side(true, "w1"), side(false)}, nil, yes},
		{"they reach another endpoint", []lb.Side{side(true, "w1")}, func(s *lb.State) { s.Services[0].ServingNodes["w2"] = true }, no},
		{"an endpoint is on no node", []lb.Side{side(true, "w1")}, func(s *lb.State) { s.Services[0].ServingAnywhere = true }, no},
		{"they reach another Service on the address", []lb.Side{side(true, "w1")}, func(s *lb.State) {
			other := s.Services[0]
			other.Key.Name, other.ServingNodes = "wec", map[string]bool{"w2": true}
			s.Services = append(s.Services, other)
		}, no},
		{"nobody here may announce", []lb.Side{side(true, "w1")}, func(s *lb.State) {
			s.Nodes["w1"] = lb.Node{Name: "w1", Excluded: true}
		}, "announce 0 route 0"},
	} {
		s := testState()
		s.HeldDown = map[string]bool{"w1": true}
		s.Here.CutOffFrom = map[string]bool{"w2": true, "w3": true}
		s.Here.Partition = lb.Partition{YieldsTo: []string{"w2", "w3"}, Sides: tt.sides}
		s.Services[0].ServingNodes = map[string]bool{"w1": true}
		if tt.more != nil {
			tt.more(&s)
		}
		p := ForNode("w1", s)
		got := strings.Join([]string{"announce", digit(len(p.Announcements)), "route", digit(len(p.Routes))}, " ")
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if len(p.Yield) > 0 {
			t.Errorf("%s: it waits until it hears who takes %v over, from whom it is cut off", tt.name, p.Yield)
		}
		for _, o := range []Outcome{p.Verdicts[0].L2, p.Verdicts[0].BGP} {
			if tt.want == yes && (!o.Writer || len(o.Nodes) != 1) {
				t.Errorf("%s: announced by %v, written here %t", tt.name, o.Nodes, o.Writer)
			}
		}
	}
}

// TestCutOffWriter: who reads that another side announces a Service leaves its condition alone.
func TestCutOffWriter(t *testing.T) {
	for refused, want := range map[string]bool{"w1": false, "w2": true} {
		s := testState()
		s.Members = map[string]bool{"w1": true}
		s.Here.CutOffFrom = map[string]bool{"w2": true, "w3": true}
		s.Here.Partition.Sides = []lb.Side{{Refuses: map[string]bool{refused: true}}}
		v := ForNode("w1", s).Verdicts[0]
		for kind, o := range map[string]Outcome{"layer 2": v.L2, "BGP": v.BGP} {
			if o.Reason != lb.CutOff || o.Writer != want {
				t.Errorf("%s, the other side refuses %s: %s, written here %t, want %t", kind, refused, o.Reason, o.Writer, want)
			}
		}
	}
}

// The sentence says who and why.
func TestCutOffSays(t *testing.T) {
	s := testState()
	s.Members = map[string]bool{"w1": true}
	s.Here.CutOffFrom = map[string]bool{"w2": true, "w3": true}
	v := ForNode("w1", s).Verdicts[0]
	const want = "node w1 is cut off from half of the speakers or more and reaches no node with a serving endpoint (w2)"
	for kind, o := range map[string]Outcome{"layer 2": v.L2, "BGP": v.BGP} {
		if o.Reason != lb.CutOff || o.Message != want || !o.Writer {
			t.Errorf("%s: %s: %s", kind, o.Reason, o.Message)
		}
	}
}
