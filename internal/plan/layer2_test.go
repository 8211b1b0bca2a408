package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestArrival: an address of a Service with policy Local, whose first endpoint on w1 comes, stays with its former owner w2
// until kube-proxy of w1 serves that endpoint, unless w2 does not go on.
//
// Traps: the new owner drops what its kube-proxy does not serve yet; a takeover from a dead node waits.
func TestArrival(t *testing.T) {
	const takes, waits = "announces 2, yields 0, owned by w1, Announced", "announces 0, yields 2, owned by w2, KubeProxyNotReady"
	with := func(set *map[string]bool) { *set = map[string]bool{"w2": true} }
	for _, tt := range []struct {
		name   string
		change func(*lb.State)
		want   string
	}{
		{"not served yet", func(*lb.State) {}, waits},
		{"served", func(s *lb.State) { s.Here.Unserved = nil }, takes},
		{"another Service is not served yet", func(s *lb.State) { s.Here.Unserved = map[lb.Key]bool{{Name: "other"}: true} }, takes},
		{"the former owner drains", func(s *lb.State) { drain(s, "w2") }, waits},
		{"its speaker is about to stop", func(s *lb.State) { with(&s.Stopping) }, waits},
		{"it is excluded", func(s *lb.State) { exclude(s, "w2") }, waits},
		{"it is dead", func(s *lb.State) { delete(s.Members, "w2") }, takes},
		{"its speaker has left", func(s *lb.State) { delete(s.Members, "w2"); with(&s.Left) }, takes},
		{"its speaker is down", func(s *lb.State) { with(&s.SpeakerDown) }, takes},
		{"it stepped back", func(s *lb.State) { with(&s.HeldDown) }, takes},
		{"it was booted", func(s *lb.State) { s.Unfit = map[string]lb.Unfit{"w2": lb.Booting} }, takes},
		{"its Node is gone", func(s *lb.State) { delete(s.Nodes, "w2") }, takes},
		{"it has no endpoint left", func(s *lb.State) { delete(s.Services[0].ServingNodes, "w2") }, takes},
		{"its link is down", func(s *lb.State) { s.Links["w2"] = nil }, takes},
		{"its link is silent", func(s *lb.State) { s.Links["w2"][0].Silent = true }, takes},
		{"its filter is not in force", func(s *lb.State) {
			s.Services[0].Access = lb.Access{Restricted: true}
			s.Unfit = map[string]lb.Unfit{"w2": lb.Unfiltered}
		}, takes},
		{"it announces already", func(s *lb.State) { s.Here.Previous = owned("w1") }, takes},
		{"no node announced it", func(s *lb.State) { s.Here.Previous = owned("") }, takes},
		{"a new speaker", func(s *lb.State) { s.Here.Previous = nil }, takes},
		{"a Service that shares the addresses is served", func(s *lb.State) {
			second := s.Services[0]
			second.Key.Name = "second"
			s.Services = append(s.Services, second)
		}, waits},
	} {
		s := relayState()
		s.Services[0].Local, s.Services[0].ServingNodes = true, map[string]bool{"w1": true, "w2": true}
		s.Members = map[string]bool{"w1": true, "w2": true, "w3": true}
		s.Here.Previous, s.Here.Unserved = owned("w2"), map[lb.Key]bool{s.Services[0].Key: true}
		tt.change(&s)
		p := ForNode("w1", s)
		got := fmt.Sprintf("announces %d, yields %d, owned by %s, %s", len(p.Announcements), len(p.Yield), p.Owners[v4], p.Verdicts[0].L2.Here)
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if tt.want == waits && relaysOf(p) != "" {
			t.Errorf("%s: relays %s", tt.name, relaysOf(p))
		}
		// The others have one view of the owner.
		if o := ForNode("w3", s).Owners; tt.want == waits && (o[v4] != "w1" || len(ForNode("w2", s).Yield) != 2) {
			t.Errorf("%s: w3 sees the owners %v, w2 yields %v", tt.name, o, ForNode("w2", s).Yield)
		}
	}
}

// TestArrivalRelays: when the wait is over, older connections are relayed to the former owner.
func TestArrivalRelays(t *testing.T) {
	s := relayState()
	s.Services[0].Local, s.Services[0].ServingNodes = true, map[string]bool{"w1": true, "w2": true}
	s.Here.Previous, s.Here.Unserved = owned("w2"), map[lb.Key]bool{s.Services[0].Key: true}
	for range 2 {
		p := ForNode("w1", s)
		s.Here.Previous = &lb.Previous{Owners: p.Owners, Relays: p.Relays}
	}
	s.Here.Unserved = nil
	p := ForNode("w1", s)
	if got := relaysOf(p); got != toW2 {
		t.Errorf("relays %q", got)
	}
	for _, a := range p.Announcements {
		if a.Probe {
			t.Errorf("%s is probed", a.Address)
		}
	}
	if want := (map[netip.Addr]string{v4: "w1", v6: "w1"}); fmt.Sprint(p.Owners) != fmt.Sprint(want) {
		t.Errorf("owners %v", p.Owners)
	}
}

// standInOf returns the node that answers for v4 with the MAC of another one, and that one's name by its plan.
func standInOf(t *testing.T, s lb.State) (standIn, owner string) {
	t.Helper()
	for name := range s.Members {
		p := ForNode(name, s)
		for _, a := range p.Announcements {
			if a.Address != v4 || a.MAC == [6]byte{} {
				continue
			}
			if standIn != "" {
				t.Errorf("%s and %s stand in", standIn, name)
			}
			standIn, owner = name, p.Owners[v4]
			if a.MAC != s.Links[owner][0].MAC || a.Probe {
				t.Errorf("%s announces %+v for %s", name, a, owner)
			}
		}
	}
	return standIn, owner
}

// TestStandInOfTheOnlyOwner: an address that one node alone may announce is answered for it while its speaker is away, by any
// node that the advertisement lets announce: packets never pass that one. So it is asked neither for an endpoint nor for
// kube-proxy nor for its filter. A node that said goodbye is replaced so only where no other may own the address.
//
// Trap: new clients of a Local Service with one endpoint get no answer during a rolling update.
func TestStandInOfTheOnlyOwner(t *testing.T) {
	killed := func(s *lb.State) { s.SpeakerDown = map[string]bool{"w1": true} }
	left := func(s *lb.State) {
		s.Members = map[string]bool{"w2": true, "w3": true}
		s.Left, s.Stopping = map[string]bool{"w1": true}, map[string]bool{"w1": true}
	}
	only := func(names ...string) func(*lb.State) { // the advertisement
		return func(s *lb.State) {
			s.L2Advertisements[0].NodeSelectors = []lb.Selector{{{Key: "name", Operator: lb.In, Values: names}}}
		}
	}
	for _, tt := range []struct {
		name    string
		change  func(*lb.State)
		away    func(*lb.State)
		standIn string
	}{
		{"killed", func(*lb.State) {}, killed, "w2"},
		{"said goodbye", func(*lb.State) {}, left, "w2"},
		{"said goodbye more than two minutes ago", func(*lb.State) {}, func(s *lb.State) { left(s); s.Left = nil }, ""},
		{"its node goes down", func(s *lb.State) { change(s, "w1", func(n *lb.Node) { n.ShuttingDown, n.Draining = true, true }) }, left, ""},
		{"its node is gone", func(s *lb.State) { delete(s.Nodes, "w1") }, left, ""},
		{"its node is excluded", func(s *lb.State) { exclude(s, "w1") }, left, ""},
		{"its endpoint moved to no node", func(s *lb.State) { s.Services[0].ServingNodes = map[string]bool{"w4": true} }, left, ""},
		{"another node may own it", func(s *lb.State) { s.Services[0].ServingNodes["w3"] = true }, left, ""},
		{"another node may own it, killed", func(s *lb.State) { s.Services[0].ServingNodes["w3"] = true }, killed, "w2"},
		{"the stand-in boots", func(s *lb.State) { s.Unfit = map[string]lb.Unfit{"w2": lb.Booting} }, killed, "w2"},
		{"the stand-in does not filter", func(s *lb.State) {
			s.Services[0].Access = lb.Access{Restricted: true, Allow: prefixes("192.0.2.0/24")}
			s.Unfit = map[string]lb.Unfit{"w2": lb.Unfiltered}
		}, killed, "w2"},
		{"the next in rank is excluded", func(s *lb.State) { exclude(s, "w2") }, killed, "w3"},
		{"its network is unavailable", func(s *lb.State) { change(s, "w2", func(n *lb.Node) { n.NetworkUnavailable = true }) }, left, "w3"},
		{"it is not selected", only("w1", "w3"), killed, "w3"},
		{"no other is selected", only("w1"), killed, ""},
		{"no other is selected, said goodbye", only("w1"), left, ""},
		{"the owner is not selected", only("w2", "w3"), left, ""},
		{"the Service selects another", func(s *lb.State) {
			s.Services[0].NodeSelectors = []lb.Selector{{{Key: "name", Operator: lb.In, Values: []string{"w1", "w3"}}}}
		}, left, "w3"},
		{"its sockets are refused", func(s *lb.State) { s.Links["w2"][0].Refused = true }, killed, "w3"},
		{"it is held down", func(s *lb.State) { s.HeldDown = map[string]bool{"w2": true} }, left, "w3"},
		{"it stops too", func(s *lb.State) { s.Stopping = map[string]bool{"w2": true} }, killed, "w3"},
		{"its speaker is away too", func(s *lb.State) { s.SpeakerDown = map[string]bool{"w2": true} }, func(s *lb.State) { left(s) }, "w3"},
		{"the owner's filter was not in force", func(s *lb.State) {
			s.Services[0].Access = lb.Access{Restricted: true, Allow: prefixes("192.0.2.0/24")}
			s.Unfit = map[string]lb.Unfit{"w1": lb.Unfiltered}
		}, left, ""},
		{"no endpoint is ready", func(s *lb.State) { s.Services[0].Serving = false }, left, ""},
		{"two Services share it", func(s *lb.State) {
			other := s.Services[0]
			other.Key.Name = "web2"
			s.Services = append(s.Services, other)
		}, left, "w2"},
	} {
		s := testState()
		s.Links = map[string][]lb.Link{}
		for i, name := range []string{"w1", "w2", "w3"} {
			l := link("eth0", "192.0.2.0/24", "2001:db8::/64")
			l.MAC = [6]byte{2, 0, 0, 0, 0, byte(i + 1)}
			s.Links[name] = []lb.Link{l}
			change(&s, name, func(n *lb.Node) { n.Labels = map[string]string{"name": name} })
		}
		s.Services[0].Addresses = []netip.Addr{v4}
		s.Services[0].Local, s.Services[0].ServingNodes = true, map[string]bool{"w1": true}
		tt.change(&s)
		tt.away(&s)
		got, owner := standInOf(t, s)
		if got != tt.standIn || got != "" && owner != "w1" {
			t.Errorf("%s: %q stands in for %q, want %q", tt.name, got, owner, tt.standIn)
		}
		if got != "" {
			if v := ForNode(got, s).Verdicts[0].L2; v.Reason != lb.Announced || v.Nodes[0] != "w1" {
				t.Errorf("%s: the verdict is %+v", tt.name, v)
			}
		}
	}
}

// change changes a node of a State.
func change(s *lb.State, name string, how func(*lb.Node)) {
	n := s.Nodes[name]
	how(&n)
	s.Nodes[name] = n
}

// TestNewerOwner: an address that another node has by a newer spec is left to it, until that node is dead.
func TestNewerOwner(t *testing.T) {
	for _, tt := range []struct {
		name   string
		newer  map[netip.Addr]string
		change func(*lb.State)
		want   string
	}{
		{"nobody", nil, nil, "w1"},
		{"another node", map[netip.Addr]string{v4: "w3"}, nil, "w3"},
		{"of another address", map[netip.Addr]string{v6: "w3"}, nil, "w1"},
		{"a dead node", map[netip.Addr]string{v4: "w3"}, func(s *lb.State) { s.Members = map[string]bool{"w1": true, "w2": true} }, "w1"},
		{"a node without speaker", map[netip.Addr]string{v4: "w3"}, func(s *lb.State) { s.SpeakerDown = map[string]bool{"w3": true} }, "w1"},
		{"a node that is not known", map[netip.Addr]string{v4: "w9"}, nil, "w1"},
	} {
		s := testState()
		s.Here.Newer = tt.newer
		if tt.change != nil {
			tt.change(&s)
		}
		p := ForNode("w1", s)
		announces := slices.ContainsFunc(p.Announcements, func(a lb.Announcement) bool { return a.Address == v4 })
		if p.Owners[v4] != tt.want || announces != (tt.want == "w1") || slices.Contains(p.Yield, v4) == announces {
			t.Errorf("%s: owned by %s, announced: %v, yields %v", tt.name, p.Owners[v4], announces, p.Yield)
		}
		if other := ForNode("w2", s); other.Owners[v4] != "w1" && tt.want != "w1" {
			t.Errorf("%s: a node that owns nothing takes %s for the owner", tt.name, other.Owners[v4])
		}
	}
}

// TestSources: a plan has the MACs from which other nodes announce their addresses, if the links of these nodes are known;
// but not those of its own addresses.
func TestSources(t *testing.T) {
	macs := func(nic byte) [6]byte { return [6]byte{2, 0, 0, 0, 0, nic} }
	for _, tt := range []struct {
		name   string
		node   string
		change func(*lb.State)
		want   [][6]byte
	}{
		{"another node's", "w2", nil, [][6]byte{macs(0), macs(1)}},
		{"its own", "w1", nil, nil},
		{"on the links that are named", "w2", func(s *lb.State) { s.L2Advertisements[0].Links = []string{"eth1"} }, [][6]byte{macs(1)}},
		{"of all advertisements", "w2", func(s *lb.State) {
			s.L2Advertisements = []lb.L2Advertisement{{Name: "a", Links: []string{"eth1"}}, {Name: "b", Links: []string{"eth1", "veth1"}}}
		}, [][6]byte{macs(1), macs(2)}},
		{"of a node without metadata", "w2", func(s *lb.State) { delete(s.Links, "w1") }, nil},
		{"that no node announces", "w2", func(s *lb.State) { s.Services[0].Serving = false }, nil},
	} {
		s := relayState()
		s.L2Advertisements = []lb.L2Advertisement{{Name: "l2"}}
		for i, name := range []string{"eth0", "eth1", "veth1"} {
			l := link(name, "192.0.2.0/24", "2001:db8::/64")
			l.MAC = macs(byte(i))
			if i == 0 {
				s.Links["w1"] = nil
			}
			s.Links["w1"] = append(s.Links["w1"], l)
		}
		if tt.change != nil {
			tt.change(&s)
		}
		p := ForNode(tt.node, s)
		for _, a := range []netip.Addr{v4, v6} {
			if diff := cmp.Diff(tt.want, p.Sources[a]); diff != "" {
				t.Errorf("%s, owned by %q (-want +got):\n%s", tt.name, p.Owners[a], diff)
			}
		}
	}
}
