package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// An aggregate stands while one of its addresses is advertised, and has the attributes of the oldest advertisement that
// makes it, whichever Service comes first.
func TestAggregate(t *testing.T) {
	service := func(name, address string, serving bool) lb.Service {
		return lb.Service{
			Key: lb.Key{Namespace: "default", Name: name}, Labels: map[string]string{"name": name},
			Addresses: []netip.Addr{netip.MustParseAddr(address)}, Serving: serving,
		}
	}
	selects := func(name string) lb.Scope {
		return lb.Scope{ServiceSelectors: []lb.Selector{{{Key: "name", Operator: lb.In, Values: []string{name}}}}}
	}
	for _, tt := range []struct {
		a, b bool
		want []string
	}{
		{true, true, []string{"192.0.2.0/24 localpref 10"}},
		{true, false, []string{"192.0.2.0/24 localpref 20"}},
		{false, true, []string{"192.0.2.0/24 localpref 10"}},
		{false, false, nil},
	} {
		s := lb.State{
			Nodes: map[string]lb.Node{"w1": {Name: "w1"}}, Members: map[string]bool{"w1": true},
			Pools:    []lb.Pool{{Name: "p", Ranges: []lb.Range{{From: netip.MustParseAddr("192.0.2.0"), To: netip.MustParseAddr("192.0.2.255")}}}},
			Peers:    []lb.Peer{{Name: "r", Address: netip.MustParseAddr("198.51.100.1")}},
			Services: []lb.Service{service("a", "192.0.2.1", tt.a), service("b", "192.0.2.2", tt.b)},
			BGPAdvertisements: []lb.BGPAdvertisement{
				{Name: "old", Scope: selects("b"), AggregationLength: 24, AggregationLengthV6: 128, LocalPref: 10},
				{Name: "young", Scope: selects("a"), AggregationLength: 24, AggregationLengthV6: 128, LocalPref: 20},
			},
		}
		var got []string
		for _, r := range ForNode("w1", s).Routes {
			got = append(got, fmt.Sprintf("%s localpref %d", r.Prefix, r.LocalPref))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("a serves %t, b serves %t: -want +got\n%s", tt.a, tt.b, diff)
		}
	}
}

func exclude(s *lb.State, name string) {
	n := s.Nodes[name]
	n.Excluded = true
	s.Nodes[name] = n
}

// left says what a node does with v4: the time from now to its withdrawal if it leaves the address.
func left(p Plan, s lb.State) string {
	i := slices.IndexFunc(p.Routes, func(r lb.Route) bool { return r.Prefix.Contains(v4) })
	until, advertised := p.Advertised[v4]
	switch {
	case advertised != (i >= 0):
		return "the plan contradicts itself"
	case i < 0:
		return ""
	case p.Routes[i].Leaving != !until.IsZero() || p.Withdraws != until:
		return "the plan contradicts itself"
	case p.Routes[i].Leaving:
		return until.Sub(s.Now).String()
	}
	return "stays"
}

// TestLeave: a node that is drained or excluded goes on with its routes for a while, marked as such, if another node serves;
// it goes on for good if none does. It begins no route before its kube-proxy serves what arrives.
//
// Traps: a drained node attracts traffic until it is off, or withdraws before routers have chosen others; a route is
// advertised before the local endpoint is programmed.
func TestLeave(t *testing.T) {
	local := func(nodes ...string) func(*lb.State) {
		return func(s *lb.State) {
			s.Services[0].Local, s.Services[0].ServingNodes = true, map[string]bool{}
			for _, n := range nodes {
				s.Services[0].ServingNodes[n] = true
			}
		}
	}
	drained := func(names ...string) func(*lb.State) { return func(s *lb.State) { drain(s, names...) } }
	with := func(all ...func(*lb.State)) func(*lb.State) {
		return func(s *lb.State) {
			for _, change := range all {
				change(s)
			}
		}
	}
	unserved := func(s *lb.State) { s.Here.Unserved = map[lb.Key]bool{s.Services[0].Key: true} }
	since := func(ago time.Duration) func(*lb.State) {
		return func(s *lb.State) { s.Here.Advertised[v4] = s.Now.Add(leaveTime - ago) }
	}
	for _, tt := range []struct {
		name   string
		change func(*lb.State)
		want   string
		here   lb.Reason
		nodes  string
	}{
		{"nothing happens", drained(), "stays", lb.Announced, "w1 w2 w3"},
		{"drained", drained("w1"), "3s", lb.NodeDraining, "w2 w3"},
		{"for a second", with(drained("w1"), since(time.Second)), "2s", lb.NodeDraining, "w2 w3"},
		{"for three", with(drained("w1"), since(3*time.Second)), "", lb.NodeDraining, "w2 w3"},
		{"drained, and advertised nothing before", with(drained("w1"), func(s *lb.State) { s.Here.Advertised = nil }), "", lb.NodeDraining, "w2 w3"},
		{"uncordoned in time", since(time.Second), "stays", lb.Announced, "w1 w2 w3"},
		{"all are drained", with(drained("w1", "w2", "w3"), since(time.Second)), "stays", lb.Announced, "w1 w2 w3"},
		{"the others are dead", with(drained("w1"), func(s *lb.State) { s.Members = map[string]bool{"w1": true} }), "stays", lb.Announced, "w1"},
		{"the others' speakers stop", with(drained("w1"), func(s *lb.State) { s.Stopping = map[string]bool{"w2": true, "w3": true} }), "stays", lb.Announced,
			"w1 w2 w3"},
		{"the others' speakers are down", with(drained("w1"), func(s *lb.State) { s.SpeakerDown = map[string]bool{"w2": true, "w3": true} }), "stays", lb.Announced,
			"w1 w2 w3"},
		{"only its speaker stops", func(s *lb.State) { s.Stopping = map[string]bool{"w1": true} }, "stays", lb.Announced, "w1 w2 w3"},
		{"the others boot", with(drained("w1"), func(s *lb.State) { s.Unfit = map[string]lb.Unfit{"w2": lb.Booting, "w3": lb.Booting} }), "stays", lb.Announced,
			"w1"},
		{"the others have no session", with(drained("w1"), func(s *lb.State) { s.Unfit = map[string]lb.Unfit{"w2": lb.Sessionless, "w3": lb.Sessionless} }), "stays",
			lb.Announced, "w1 w2 w3"},
		{"the others have one for the other family only", with(drained("w1"),
			func(s *lb.State) { s.Unfit = map[string]lb.Unfit{"w2": lb.SessionlessIPv4, "w3": lb.SessionlessIPv4} }), "stays", lb.Announced, "w1 w2 w3"},
		{"the others have one for this family only", with(drained("w1"), func(s *lb.State) {
			s.Unfit = map[string]lb.Unfit{"w2": lb.SessionlessIPv6,
				"w3": lb.SessionlessIPv6}
		}), "3s", lb.NodeDraining, "w2 w3"},
		{"one of them has", with(drained("w1"), func(s *lb.State) { s.Unfit = map[string]lb.Unfit{"w2": lb.Sessionless} }), "3s", lb.NodeDraining, "w2 w3"},
		{"the others have no peer", with(drained("w1"), func(s *lb.State) {
			for i := range s.Peers {
				s.Peers[i].Unusable = map[string]lb.Reason{"w2": lb.PeerIsSelf, "w3": lb.PeerIsSelf}
			}
		}), "stays", lb.Announced, "w1"},
		{"Local: no other has an endpoint", with(drained("w1"), local("w1")), "stays", lb.Announced, "w1"},
		{"Local: another has", with(drained("w1"), local("w1", "w2")), "3s", lb.NodeDraining, "w2"},
		{"Local: only another has", with(drained("w1"), local("w2")), "", lb.NoLocalEndpoint, "w2"},
		{"excluded", func(s *lb.State) { exclude(s, "w1") }, "3s", lb.NodeExcluded, "w2 w3"},
		{"excluded for three seconds", with(func(s *lb.State) { exclude(s, "w1") }, since(3*time.Second)), "", lb.NodeExcluded, "w2 w3"},
		{"excluded, and no other has an endpoint", with(func(s *lb.State) { exclude(s, "w1") }, local("w1")), "", lb.NoEligibleNode, ""},
		{"excluded, and only another has an endpoint", with(func(s *lb.State) { exclude(s, "w1") }, local("w2")), "", lb.NodeExcluded, "w2"},
		{"kube-proxy does not serve its endpoint yet", with(local("w1", "w2"), unserved, func(s *lb.State) { s.Here.Advertised = nil }), "", lb.KubeProxyNotReady,
			"w1 w2"},
		{"the same of a route that is there", with(local("w1", "w2"), unserved), "stays", lb.Announced, "w1 w2"},
		{"has no peer", with(drained("w1"), func(s *lb.State) {
			for i := range s.Peers {
				s.Peers[i].Unusable = map[string]lb.Reason{"w1": lb.PeerIsSelf}
			}
		}), "", lb.NoPeer, "w2 w3"},
	} {
		s := testState()
		s.Now = time.Unix(1000, 0)
		s.Services[0].Addresses = []netip.Addr{v4}
		s.Here.Advertised = map[netip.Addr]time.Time{v4: {}}
		tt.change(&s)
		p := ForNode("w1", s)
		v := p.Verdicts[0].BGP
		if got := left(p, s); got != tt.want || v.Here != tt.here || strings.Join(v.Nodes, " ") != tt.nodes {
			t.Errorf("%s: withdrawn after %q, want %q; here %s, want %s; nodes %v, want %s", tt.name, got, tt.want, v.Here, tt.here, v.Nodes, tt.nodes)
		}
		if says := strings.Contains(v.Message, "(not w1: NodeDraining)"); says != (tt.here == lb.NodeDraining) {
			t.Errorf("%s: message %q", tt.name, v.Message)
		}
	}
}

// TestLeaveOver: plan after plan, as a speaker makes them, a drained node withdraws once and takes nothing back until it is
// uncordoned or the others are gone.
func TestLeaveOver(t *testing.T) {
	s := testState()
	s.Now = time.Unix(1000, 0)
	s.Services[0].Addresses = []netip.Addr{v4}
	step := func(after time.Duration, want string) {
		t.Helper()
		s.Now = s.Now.Add(after)
		p := ForNode("w1", s)
		if got := left(p, s); got != want {
			t.Fatalf("after %v: %q, want %q", after, got, want)
		}
		s.Here.Advertised = maps.Clone(p.Advertised)
	}
	members := s.Members
	step(0, "stays")
	drain(&s, "w1")
	step(time.Second, "3s")
	step(time.Second, "2s")
	s.Members = map[string]bool{"w1": true}
	step(0, "stays")
	s.Members = members
	step(time.Second, "3s")
	step(3*time.Second, "")
	step(time.Second, "")
	s.Members = map[string]bool{"w1": true}
	step(0, "stays")
	s.Members = members
	step(0, "3s")
	step(3*time.Second, "")
	n := s.Nodes["w1"]
	n.Draining = false
	s.Nodes["w1"] = n
	step(time.Second, "stays")
}

// TestLeaveAggregate: an aggregate is left when all addresses inside are. An address that two Services share is left when both
// leave it.
func TestLeaveAggregate(t *testing.T) {
	for _, tt := range []struct {
		name    string
		address string
		local   string
		bits    int
		want    string
	}{
		{"another address stays", "192.0.2.11", "w1", 24, "[192.0.2.0/24 leaving false]"},
		{"all leave", "192.0.2.11", "w1 w2", 24, "[192.0.2.0/24 leaving true]"},
		{"no aggregate", "192.0.2.11", "w1", 32, "[192.0.2.10/32 leaving true 192.0.2.11/32 leaving false]"},
		{"shared, one stays", "192.0.2.10", "w1", 32, "[192.0.2.10/32 leaving false]"},
		{"shared, both leave", "192.0.2.10", "w1 w2", 32, "[192.0.2.10/32 leaving true]"},
	} {
		s := testState()
		s.BGPAdvertisements[0].AggregationLength = tt.bits
		other := netip.MustParseAddr(tt.address)
		s.Here.Advertised = map[netip.Addr]time.Time{v4: {}, other: {}}
		second := s.Services[0]
		s.Services[0].Addresses = []netip.Addr{v4}
		second.Key.Name, second.Addresses, second.Local, second.ServingNodes = "z", []netip.Addr{other}, true, map[string]bool{}
		for _, n := range strings.Fields(tt.local) {
			second.ServingNodes[n] = true
		}
		s.Services = append(s.Services, second)
		drain(&s, "w1")
		var got []string
		p := ForNode("w1", s)
		for _, r := range p.Routes {
			got = append(got, fmt.Sprintf("%s leaving %t", r.Prefix, r.Leaving))
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, got, tt.want)
		}
		if stays := strings.HasPrefix(tt.name, "shared, one"); p.Withdraws.IsZero() != stays {
			t.Errorf("%s: withdraws at %v", tt.name, p.Withdraws)
		}
	}
}
