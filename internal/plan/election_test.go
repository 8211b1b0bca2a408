package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// owners returns the nodes that announce an address by their own plans.
func owners(s lb.State, a netip.Addr) string {
	return strings.Join(slices.Sorted(slices.Values(ownersOf(s, a))), " ")
}

func link(name string, prefixes ...string) lb.Link {
	l := lb.Link{Name: name, Default: name != "veth1"}
	for _, p := range prefixes {
		l.Prefixes = append(l.Prefixes, netip.MustParsePrefix(p))
	}
	return l
}

func drain(s *lb.State, names ...string) {
	for _, name := range names {
		n := s.Nodes[name]
		n.Draining = true
		s.Nodes[name] = n
	}
}

// TestRank: the owners of v4 and v6; by the hash alone it is w1, then w2.
//
// Traps: the owner does not have the interface, or not the subnet, so that no node announces or no client asks there; a
// node that returns takes its addresses back at once (MetalLB); policy Local works only with a health monitor that a user
// configures (OCCM #2866).
func TestRank(t *testing.T) {
	zone := func(value string) []lb.Selector {
		return []lb.Selector{{{Key: "zone", Operator: lb.In, Values: []string{value}}}}
	}
	all := func(s *lb.State) {
		s.Links = map[string][]lb.Link{}
		for _, n := range []string{"w1", "w2", "w3"} {
			s.Links[n] = []lb.Link{link("eth0", "192.0.2.0/24", "2001:db8::/64")}
		}
	}
	for _, tt := range []struct {
		name    string
		change  func(*lb.State)
		v4, v6  string
		message string
	}{
		{"the hash alone", func(*lb.State) {}, "w1", "w1", ""},
		{"all links alike", all, "w1", "w1", ""},
		{"draining ranks last", func(s *lb.State) { drain(s, "w1") }, "w2", "w2", ""},
		{"all nodes are draining", func(s *lb.State) { drain(s, "w1", "w2", "w3") }, "w1", "w1", ""},
		{"a speaker that stops ranks last", func(s *lb.State) { s.Stopping = map[string]bool{"w1": true} }, "w2", "w2", ""},
		{"stopping ranks behind draining", func(s *lb.State) { drain(s, "w2", "w3"); s.Stopping = map[string]bool{"w1": true} }, "w2", "w2", ""},
		{"a node that is held down takes nothing back", func(s *lb.State) { s.HeldDown = map[string]bool{"w1": true} }, "w2", "w2", ""},
		{"held down, but no other node can", func(s *lb.State) {
			s.HeldDown = map[string]bool{"w1": true}
			s.Members = map[string]bool{"w1": true}
		}, "w1", "w1", ""},
		{"held down ranks before draining", func(s *lb.State) { drain(s, "w2", "w3"); s.HeldDown = map[string]bool{"w1": true} }, "w1", "w1", ""},
		{"the node with the subnet", func(s *lb.State) {
			all(s)
			s.Links["w1"] = []lb.Link{link("eth0", "10.0.0.0/8")}
		}, "w2", "w2", ""},
		{"the subnet counts more than draining", func(s *lb.State) {
			all(s)
			drain(s, "w2")
			s.Links["w1"], s.Links["w3"] = []lb.Link{link("eth0", "10.0.0.0/8")}, nil
		}, "w2", "w2", ""},
		{"a node without metadata counts as one with the subnet", func(s *lb.State) {
			all(s)
			delete(s.Links, "w1")
		}, "w1", "w1", ""},
		{"no node has the subnet", func(s *lb.State) {
			s.Links = map[string][]lb.Link{"w1": {link("eth0", "10.0.0.0/8")}, "w2": {link("eth0")}, "w3": {}}
		}, "w1", "w1", "no node that may announce has a link with its subnet"},
		{"no node has the interface", func(s *lb.State) {
			all(s)
			s.L2Advertisements[0].Links = []string{"eth9"}
		}, "w1", "w1", "no node that may announce has a link to do so"},
		{"the node with the interface", func(s *lb.State) {
			all(s)
			s.L2Advertisements[0].Links = []string{"eth1"}
			s.Links["w3"] = append(s.Links["w3"], link("eth1", "10.0.0.0/8"))
		}, "w3", "w3", "no node that may announce has a link with its subnet"},
		{"the subnet on a link that may not announce", func(s *lb.State) {
			all(s)
			s.Links["w1"] = []lb.Link{link("eth0", "10.0.0.0/8"), link("veth1", "192.0.2.0/24", "2001:db8::/64")}
		}, "w2", "w2", ""},
		{"a prefix of full length is no subnet", func(s *lb.State) {
			all(s)
			s.Links["w1"] = []lb.Link{link("eth0", "192.0.2.10/32", "2001:db8::10/128")}
		}, "w2", "w2", ""},
		{"both families on the node that has both", func(s *lb.State) {
			all(s)
			s.Links["w1"] = []lb.Link{link("eth0", "192.0.2.0/24")}
		}, "w2", "w2", ""},
		{"on two nodes if none has both", func(s *lb.State) {
			s.Links = map[string][]lb.Link{"w1": {link("eth0", "192.0.2.0/24")}, "w2": {link("eth0", "2001:db8::/64")}, "w3": {}}
		}, "w1", "w2", ""},
		{"preferred", func(s *lb.State) {
			s.L2Advertisements[0].Preferred = []lb.Preference{{Weight: 1, Selector: zone("b")[0]}}
		}, "w3", "w3", ""},
		{"weights add up", func(s *lb.State) {
			s.L2Advertisements[0].Preferred = []lb.Preference{{Weight: 3, Selector: zone("b")[0]}, {Weight: 2, Selector: zone("a")[0]}}
			s.L2Advertisements = append(s.L2Advertisements, lb.L2Advertisement{Name: "l3", Preferred: []lb.Preference{{Weight: 2, Selector: zone("a")[0]}}})
		}, "w1", "w1", ""},
		{"an advertisement prefers among its own nodes", func(s *lb.State) {
			s.L2Advertisements = append(s.L2Advertisements, lb.L2Advertisement{
				Name: "l3", Scope: lb.Scope{NodeSelectors: zone("a")},
				Preferred: []lb.Preference{{Weight: 100, Selector: zone("b")[0]}},
			})
		}, "w1", "w1", ""},
		{"preferred but held down", func(s *lb.State) {
			s.L2Advertisements[0].Preferred = []lb.Preference{{Weight: 1, Selector: zone("b")[0]}}
			s.HeldDown = map[string]bool{"w3": true}
		}, "w1", "w1", ""},
		{"the Service's own selector", func(s *lb.State) { s.Services[0].NodeSelectors = zone("b") }, "w3", "w3", ""},
		{"a selector that matches nothing", func(s *lb.State) { s.Services[0].NodeSelectors = zone("none") }, "", "",
			"NodeNotSelected: w1, w2, w3"},
		{"policy Local counts more than any rank", func(s *lb.State) {
			all(s)
			drain(s, "w3")
			s.Links["w3"] = []lb.Link{link("eth0", "10.0.0.0/8")}
			s.Services[0].Local, s.Services[0].ServingNodes = true, map[string]bool{"w3": true}
		}, "w3", "w3", "no node that may announce has a link with its subnet"},
		{"excluded is not draining: it never announces", func(s *lb.State) {
			for name, n := range s.Nodes {
				n.Excluded = true
				s.Nodes[name] = n
			}
		}, "", "", "NodeExcluded: w1, w2, w3"},
	} {
		s := testState()
		s.BGPAdvertisements = nil
		tt.change(&s)
		if got4, got6 := owners(s, v4), owners(s, v6); got4 != tt.v4 || got6 != tt.v6 {
			t.Errorf("%s: owned by %q and %q, want %q and %q", tt.name, got4, got6, tt.v4, tt.v6)
		}
		l2 := ForNode("w1", s).Verdicts[0].L2
		got := l2.Message
		for _, a := range l2.Announcers {
			got += a.Remark
		}
		if !strings.Contains(got, tt.message) || tt.message == "" && got != "" {
			t.Errorf("%s: the message is %q, want %q in it", tt.name, got, tt.message)
		}
	}
}

// TestYield: a node that loses an address to another one goes on until that one announces it; a node that withdraws an
// address does not.
func TestYield(t *testing.T) {
	s := testState()
	for _, tt := range []struct {
		name   string
		change func()
		want   int
	}{
		{"owned here", func() {}, 0},
		{"drained", func() { drain(&s, "w1") }, 2},
		{"drained, and it hears badly", func() { s.Here.HearsBadly = true }, 0},
		{"drained, and it hears well again", func() { s.Here.HearsBadly = false }, 2},
		{"no endpoint serves", func() { s.Services[0].Serving = false }, 0},
		{"deleted", func() { s.Services = nil }, 0},
	} {
		tt.change()
		if got := ForNode("w1", s).Yield; len(got) != tt.want || !slices.IsSortedFunc(got, netip.Addr.Compare) {
			t.Errorf("%s: yields %v, want %d", tt.name, got, tt.want)
		}
	}
}

// TestStandIn: while the owner's speaker is down nothing moves, and the next in rank answers with the MAC of the owner's
// link.
func TestStandIn(t *testing.T) {
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	s := testState()
	s.Links = map[string][]lb.Link{}
	for _, n := range []string{"w1", "w2", "w3"} {
		s.Links[n] = []lb.Link{link("eth9"), link("eth0", "192.0.2.0/24", "2001:db8::/64")}
	}
	s.Links["w1"][1].MAC = mac
	s.SpeakerDown = map[string]bool{"w1": true}
	for _, tt := range []struct {
		name   string
		change func()
		want   string
	}{
		{"the next in rank", func() {}, "w2"},
		{"not one whose speaker is down too", func() { s.SpeakerDown["w2"] = true }, "w3"},
		{"none if all speakers are down", func() { s.SpeakerDown["w3"] = true }, ""},
		{"none if the owner's links are not known", func() { s.SpeakerDown = map[string]bool{"w1": true}; delete(s.Links, "w1") }, ""},
	} {
		tt.change()
		got := ""
		for _, n := range []string{"w2", "w3"} {
			p := ForNode(n, s)
			for _, a := range p.Verdicts[0].L2.Announcers {
				if a.Node != "w1" {
					t.Errorf("%s: %s thinks that %s owns %s", tt.name, n, a.Node, a.Address)
				}
			}
			for _, a := range p.Announcements {
				if a.MAC != mac || a.Probe {
					t.Errorf("%s: %s announces %+v", tt.name, n, a)
				}
				got = n
			}
		}
		if got != tt.want {
			t.Errorf("%s: %q stands in, want %q", tt.name, got, tt.want)
		}
	}
}

// TestProbe: a node probes for an address unless another node owned it, or the record of a Service that has it names a
// node.
func TestProbe(t *testing.T) {
	s := testState()
	probes := func() (out []netip.Addr) {
		for _, a := range ForNode("w1", s).Announcements {
			if a.Probe {
				out = append(out, a.Address)
			}
		}
		return out
	}
	if got := probes(); len(got) != 2 {
		t.Errorf("of a new Service %v are probed for", got)
	}
	s.Here.Previous = &lb.Previous{Owners: map[netip.Addr]string{v4: "w2", v6: "w1"}}
	if got := probes(); len(got) != 1 || got[0] != v6 {
		t.Errorf("of a Service whose IPv4 address another node had, %v are probed for", got)
	}
	s.Here.Previous = nil
	s.Services[0].AnnouncedBy = map[netip.Addr]string{v6: "w1"}
	if got := probes(); len(got) != 1 || got[0] != v4 {
		t.Errorf("of a Service whose IPv6 address was announced, %v are probed for", got)
	}
	other := s.Services[0]
	other.Key.Name, other.AnnouncedBy = "web2", map[netip.Addr]string{v4: "w1"}
	s.Services = append(s.Services, other)
	if got := probes(); len(got) != 0 {
		t.Errorf("of an address that another Service announced, %v are probed for", got)
	}
}

// TestOneOwner: with any links, drains, hold-downs, preferences and sharing, all living nodes agree on at most one owner,
// each condition of each Service has exactly one writer, and the death of a node moves only its own addresses.
//
// Traps: an address on two nodes (kube-vip #947, #1413; Cilium #48456); a dead node stays the owner until its Node object is
// deleted (Calico 3.34).
func TestOneOwner(t *testing.T) {
	for seed := range uint64(200) {
		s := randomState(seed)
		before := allOwners(t, s)
		for a, who := range before {
			if strings.Contains(who, " ") {
				t.Fatalf("seed %d: %s is owned by %s", seed, a, who)
			}
		}
		delete(s.Members, "n2")
		after := allOwners(t, s)
		for a, was := range before {
			if was != "n2" && after[a] != was || after[a] == "n2" {
				t.Errorf("seed %d: %s moved from %q to %q when n2 died", seed, a, was, after[a])
			}
		}
	}
}

// TestSpread: addresses are spread over all nodes.
func TestSpread(t *testing.T) {
	s := testState()
	s.Services = slices.Repeat(s.Services, 250)
	count, a := map[string]int{}, netip.MustParseAddr("192.0.2.0")
	for i := range s.Services {
		s.Services[i].Key.Name, s.Services[i].Addresses, a = fmt.Sprint("web", i), []netip.Addr{a}, a.Next()
	}
	for _, v := range ForNode("w1", s).Verdicts {
		count[v.L2.Nodes[0]]++
	}
	for name, n := range count {
		if n < 50 || n > 120 {
			t.Errorf("%s owns %d of 250 addresses: not spread", name, n)
		}
	}
}

// allOwners returns the nodes that announce each address by their own plans. It fails unless one living node writes each condition.
func allOwners(t *testing.T, s lb.State) map[netip.Addr]string {
	t.Helper()
	out, writers := map[netip.Addr]string{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		p := ForNode(name, s)
		for _, one := range p.Announcements {
			out[one.Address] = strings.TrimSpace(out[one.Address] + " " + name)
		}
		for _, v := range p.Verdicts {
			for kind, o := range map[string]Outcome{"l2 ": v.L2, "bgp ": v.BGP} {
				if o.Writer {
					writers[kind+v.Service.String()] += name
				}
			}
		}
	}
	for what, who := range writers {
		if !s.Members[who] {
			t.Errorf("%s is written by %q", what, who)
		}
	}
	if len(writers) != 2*len(s.Services) {
		t.Errorf("%d of %d conditions have a writer", len(writers), 2*len(s.Services))
	}
	return out
}

func randomState(seed uint64) lb.State {
	r := func(n uint64) bool { seed = score(seed, 7); return seed%n == 0 }
	s := lb.State{
		Nodes: map[string]lb.Node{}, Members: map[string]bool{}, Links: map[string][]lb.Link{},
		Stopping: map[string]bool{}, HeldDown: map[string]bool{}, Unfit: map[string]lb.Unfit{}, Pools: testState().Pools,
	}
	for i := range 6 {
		name := fmt.Sprint("n", i)
		s.Nodes[name] = lb.Node{Name: name, Draining: r(3), Excluded: r(5), Labels: map[string]string{"even": fmt.Sprint(i%2 == 0)}}
		s.Members[name], s.HeldDown[name], s.Stopping[name] = true, r(4), r(4)
		switch {
		case r(4):
		case r(3):
			s.Links[name] = []lb.Link{link("eth0", "192.0.2.0/24")}
		case r(3):
			s.Links[name] = []lb.Link{link("eth1", "192.0.2.0/25", "2001:db8::/64")}
		default:
			s.Links[name] = []lb.Link{link("eth0", "192.0.2.0/24", "2001:db8::/64")}
		}
		for j := range s.Links[name] {
			s.Links[name][j].Refused = r(5)
		}
		if r(4) {
			s.Unfit[name] |= lb.Booting
		}
		if r(3) {
			s.Unfit[name] |= lb.Unfiltered
		}
	}
	even := []lb.Selector{{{Key: "even", Operator: lb.In, Values: []string{"true"}}}}
	app := []lb.Selector{{{Key: "app", Operator: lb.In, Values: []string{"a"}}}}
	s.L2Advertisements = []lb.L2Advertisement{{Name: "all"}, {
		Name: "some", Scope: lb.Scope{ServiceSelectors: app}, Links: []string{"eth1"}, Preferred: []lb.Preference{{Weight: 5, Selector: even[0]}},
	}}
	for i := range 8 {
		sv := lb.Service{Key: lb.Key{Name: fmt.Sprint("s", i)}, Serving: !r(5), Addresses: []netip.Addr{v4, v6}[:1+seed%2]}
		if r(2) {
			sv.Labels = map[string]string{"app": "a"}
		}
		if r(3) {
			sv.NodeSelectors = even
		}
		sv.Restricted = r(3)
		if r(2) {
			// An address that no other Service shares.
			sv.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)})}
		}
		s.Services = append(s.Services, sv)
	}
	return s
}
