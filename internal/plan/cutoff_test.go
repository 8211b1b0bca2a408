package plan

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestCutOff: what w1 announces and advertises while it hears no other node. With all members it owns v4 and v6 by its
// hash.
func TestCutOff(t *testing.T) {
	const known, doubt = true, false // whether a kernel is known not to answer
	cut := func(s *lb.State, known bool, nodes ...string) {
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
		{"all nodes are in reach", func(*lb.State) {}, all, lb.Announced},
		{"the node that serves is out of reach", func(s *lb.State) { cut(s, known, "w2", "w3") }, none, lb.CutOff},
		{"even if this node announced the addresses", func(s *lb.State) { cut(s, known, "w2", "w3"); s.Here.Announced = had }, none, lb.CutOff},
		{"in doubt it takes nothing", func(s *lb.State) { cut(s, doubt, "w2", "w3") }, routes, lb.CutOff},
		{"in doubt it keeps what it announces", func(s *lb.State) { cut(s, doubt, "w2", "w3"); s.Here.Announced = had }, all, lb.Announced},
		{"one node is out of reach, the other in doubt", func(s *lb.State) {
			served(s, "w2", "w3")
			s.Here = lb.Here{CutOffFrom: map[string]bool{"w2": known, "w3": doubt}}
		}, routes, lb.CutOff},
		{"one node that serves is in reach", func(s *lb.State) { served(s, "w2", "w3"); cut(s, known, "w2") }, all, lb.Announced},
		{"a node without a speaker serves", func(s *lb.State) { served(s, "w2", "w9"); cut(s, known, "w2", "w3") }, all, lb.Announced},
		{"an endpoint on this node", func(s *lb.State) { served(s, "w1", "w2"); cut(s, known, "w2", "w3") }, all, lb.Announced},
		{"an endpoint on no node", func(s *lb.State) { s.Services[0].ServingAnywhere = true; cut(s, known, "w2", "w3") }, all, lb.Announced},
		{"only endpoints on no node", func(s *lb.State) { served(s); cut(s, known, "w2", "w3") }, all, lb.Announced},
		{"no endpoint that serves", func(s *lb.State) { s.Services[0].Serving = false; cut(s, known, "w2", "w3") }, none, lb.NoServingEndpoint},
		{"policy Local with an endpoint on this node", func(s *lb.State) {
			served(s, "w1", "w2")
			s.Services[0].Local = true
			cut(s, known, "w2", "w3")
		}, all, lb.Announced},
		{"policy Local without", func(s *lb.State) {
			s.Services[0].Local = true
			cut(s, known, "w2", "w3")
		}, none, lb.NoEligibleNode},
		{"another Service on the address is in reach", func(s *lb.State) {
			other := s.Services[0]
			other.Key.Name, other.ServingNodes = "wec", map[string]bool{"w1": true}
			s.Services = append(s.Services, other)
			cut(s, known, "w2", "w3")
		}, all, lb.Announced},
		{"it does not stand in for a node whose speaker is down", func(s *lb.State) {
			s.Members = map[string]bool{"w1": true, "w4": true}
			s.SpeakerDown = map[string]bool{"w4": true}
			s.Nodes["w4"] = lb.Node{Name: "w4"}
			s.HeldDown = map[string]bool{"w1": true}
			s.Links = map[string][]lb.Link{"w4": {link("eth0", "192.0.2.0/24", "2001:db8::/64")}}
			cut(s, known, "w2", "w3")
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
				t.Errorf("it waits for another node to take over %v", p.Yield)
			}
		})
	}
}

func digit(n int) string { return string(rune('0' + n)) }

// TestCutOffHeldDown: a node that is cut off and held down leaves to the others what it cannot serve.
func TestCutOffHeldDown(t *testing.T) {
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

// TestRefusedByPreceding: what a side of a partition announces although it yields to another. w1 is on this side, w2 and
// w3 are on the other.
func TestRefusedByPreceding(t *testing.T) {
	const yes, no = "announce 2 route 2", "announce 0 route 2"
	for _, tt := range []struct {
		name  string
		apart bool
		more  func(*lb.State)
		want  string
	}{
		{"the other side does not reach the endpoint", true, nil, yes},
		{"the other side is not cut off, or reaches this one", false, nil, no},
		{"the other side has another endpoint", true, func(s *lb.State) { s.Services[0].ServingNodes["w2"] = true }, no},
		{"an endpoint is on no node", true, func(s *lb.State) { s.Services[0].ServingAnywhere = true }, no},
		{"an endpoint is on a node without a speaker", true, func(s *lb.State) { s.Services[0].ServingNodes["w9"] = true }, no},
		{"another Service on the address has an endpoint there", true, func(s *lb.State) {
			other := s.Services[0]
			other.Key.Name, other.ServingNodes = "wec", map[string]bool{"w2": true}
			s.Services = append(s.Services, other)
		}, no},
		{"no node on this side may announce", true, func(s *lb.State) {
			s.Nodes["w1"] = lb.Node{Name: "w1", Excluded: true}
		}, "announce 0 route 0"},
	} {
		s := testState()
		s.HeldDown = map[string]bool{"w1": true}
		s.Here.CutOffFrom = map[string]bool{"w2": true, "w3": true}
		s.Here.Partition = lb.Partition{YieldsTo: []string{"w2", "w3"}, Apart: tt.apart, Divided: true}
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
			t.Errorf("%s: it waits for a node that it is cut off from to take over %v", tt.name, p.Yield)
		}
		for _, o := range []Outcome{p.Verdicts[0].L2, p.Verdicts[0].BGP} {
			if tt.want == yes && (!o.Writer || len(o.Nodes) != 1) {
				t.Errorf("%s: announced by %v, writer %t", tt.name, o.Nodes, o.Writer)
			}
		}
	}
}

// TestCutOffWriter: a node that reads that another side runs does not write the condition of a Service that it cannot serve.
func TestCutOffWriter(t *testing.T) {
	for _, divided := range []bool{false, true} {
		s := testState()
		s.Members = map[string]bool{"w1": true}
		s.Here.CutOffFrom = map[string]bool{"w2": true, "w3": true}
		s.Here.Partition.Divided = divided
		v := ForNode("w1", s).Verdicts[0]
		for kind, o := range map[string]Outcome{"layer 2": v.L2, "BGP": v.BGP} {
			if o.Reason != lb.CutOff || o.Writer == divided {
				t.Errorf("%s, another side runs %v: %s, writer %t", kind, divided, o.Reason, o.Writer)
			}
		}
	}
}

// TestCutOffMessage: the sentence names this node and the nodes that it would have to reach.
func TestCutOffMessage(t *testing.T) {
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
