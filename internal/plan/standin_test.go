package plan

import (
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

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
