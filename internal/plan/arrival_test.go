package plan

import (
	"fmt"
	"net/netip"
	"testing"

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
