package plan

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// relayState has three nodes on one LAN, with addresses .1 to .3 and link-local ones, and a Service that was
// announced. By the hash alone w1 owns both addresses, and w2 without it.
func relayState() lb.State {
	s := testState()
	s.Links = map[string][]lb.Link{}
	for i, n := range []string{"w1", "w2", "w3"} {
		l := link("eth0", "192.0.2.0/24", "2001:db8::/64")
		l.Addresses = []netip.Addr{netip.MustParseAddr(fmt.Sprint("192.0.2.", i+1)), netip.MustParseAddr(fmt.Sprint("fe80::", i+1))}
		s.Links[n] = []lb.Link{l}
	}
	s.Services[0].AnnouncedBy = map[netip.Addr]string{v4: "w1", v6: "w1"}
	return s
}

// relaysOf returns the relays of a plan as text.
func relaysOf(p Plan) string {
	var out []string
	for _, r := range p.Relays {
		family := map[netip.Addr]string{v4: "v4", v6: "v6"}[r.Address]
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s to %s at %s %s", family, r.Former, r.Via, r.Link)))
	}
	return strings.Join(out, ", ")
}

func owned(by string) *lb.Previous {
	return &lb.Previous{Owners: map[netip.Addr]string{v4: by, v6: by}}
}

const (
	toW2 = "v4 to w2 at 192.0.2.2 eth0, v6 to w2 at fe80::2 eth0"
	toW3 = "v4 to w3 at 192.0.2.3 eth0, v6 to w3 at fe80::3 eth0"
)

// TestFormer: to which node w1 relays older connections.
func TestFormer(t *testing.T) {
	relayed := func(to string) *lb.Previous {
		b := owned("w1")
		b.Relays = []lb.Relay{{Address: v4, Former: to}, {Address: v6, Former: to}}
		return b
	}
	for _, tt := range []struct {
		name     string
		previous *lb.Previous
		change   func(*lb.State)
		want     string
	}{
		{"an address that this node owned", owned("w1"), nil, ""},
		{"one that no node owned", owned(""), nil, ""},
		{"one that moved here", owned("w2"), nil, toW2},
		{"moved from a node that drains", owned("w2"), func(s *lb.State) { drain(s, "w2") }, toW2},
		{"from a speaker that stops", owned("w2"), func(s *lb.State) { s.Stopping = map[string]bool{"w2": true} }, toW2},
		{"from a node whose speaker is down", owned("w2"), func(s *lb.State) { s.SpeakerDown = map[string]bool{"w2": true} }, toW2},
		{"from one that died", owned("w2"), func(s *lb.State) { delete(s.Members, "w2") }, ""},
		{"from one whose speaker has left", owned("w2"), func(s *lb.State) { delete(s.Members, "w2"); s.Left = map[string]bool{"w2": true} }, toW2},
		{"from one whose Node is gone", owned("w2"), func(s *lb.State) { delete(s.Nodes, "w2") }, ""},
		{"what was relayed goes on", relayed("w2"), nil, toW2},
		{"until the former owner dies", relayed("w2"), func(s *lb.State) { delete(s.Members, "w2") }, ""},
		{"or its Node is gone", relayed("w2"), func(s *lb.State) { delete(s.Nodes, "w2") }, ""},
		{"though its speaker stops", relayed("w2"), func(s *lb.State) { delete(s.Members, "w2"); s.Left = map[string]bool{"w2": true} }, toW2},
		{"though no node may announce it now", relayed("w2"), func(s *lb.State) { s.Services[0].Serving = false }, toW2},
		{"unless the former owner dies then", relayed("w2"), func(s *lb.State) { s.Services[0].Serving = false; delete(s.Members, "w2") }, ""},
		{"or its Service is deleted", relayed("w2"), func(s *lb.State) { s.Services = nil }, ""},
		{"or no advertisement selects it", relayed("w2"), func(s *lb.State) { s.L2Advertisements = nil }, ""},
		{"one that moved from another node to none", owned("w2"), func(s *lb.State) { s.Services[0].Serving = false }, ""},
		{"one that moved on, and then to none", &lb.Previous{
			Owners: owned("w2").Owners, Relays: []lb.Relay{{Address: v4, Former: "w2", Until: time.Unix(1e9, 0)}},
		}, func(s *lb.State) { s.Services[0].Serving = false }, ""},
		{"one that waits for its filter", relayed("w2"), func(s *lb.State) {
			s.Here.Unfiltered = true
			s.Services[0].Access = lb.Access{Restricted: true}
		}, toW2},

		{"a new speaker, and another announced it", nil, func(s *lb.State) { s.Services[0].AnnouncedBy = map[netip.Addr]string{v4: "w3", v6: "w3"} }, toW3},
		{"another that is dead: the runner-up", nil, func(s *lb.State) {
			s.Services[0].AnnouncedBy = map[netip.Addr]string{v4: "w3", v6: "w3"}
			delete(s.Members, "w3")
		}, toW2},
		{"the record is late: the runner-up", nil, nil, toW2},
		{"the runner-up by rank", nil, func(s *lb.State) { drain(s, "w2") }, toW3},
		{"a speaker that was killed continues its relays", nil, func(s *lb.State) {
			s.Here.Inherited = map[netip.Addr]netip.Addr{v4: netip.MustParseAddr("192.0.2.3"), v6: netip.MustParseAddr("fe80::3")}
		}, toW3},
		{"whatever Nodes list their next hops", nil, func(s *lb.State) {
			s.Here.Inherited = map[netip.Addr]netip.Addr{v4: netip.MustParseAddr("192.0.2.3"), v6: netip.MustParseAddr("fe80::3")}
			s.Nodes["w2"] = lb.Node{Name: "w2", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.3"), netip.MustParseAddr("fe80::3")}}
		}, toW3},
		{"but not to a dead node", nil, func(s *lb.State) {
			s.Here.Inherited = map[netip.Addr]netip.Addr{v4: netip.MustParseAddr("192.0.2.3"), v6: netip.MustParseAddr("fe80::3")}
			delete(s.Members, "w3")
		}, toW2},
		{"nor to an address of no node", nil, func(s *lb.State) {
			s.Here.Inherited = map[netip.Addr]netip.Addr{v4: netip.MustParseAddr("192.0.2.9"), v6: netip.MustParseAddr("fe80::9")}
		}, toW2},
		{"the record counts more than an inherited relay", nil, func(s *lb.State) {
			s.Services[0].AnnouncedBy = map[netip.Addr]string{v4: "w3", v6: "w3"}
			s.Here.Inherited = map[netip.Addr]netip.Addr{v4: netip.MustParseAddr("192.0.2.2"), v6: netip.MustParseAddr("fe80::2")}
		}, toW3},
		{"an address that no node announced yet", nil, func(s *lb.State) { s.Services[0].AnnouncedBy = nil }, ""},
		{"no other node", nil, func(s *lb.State) { s.Members = map[string]bool{"w1": true} }, ""},
	} {
		s := relayState()
		s.Here.Previous = tt.previous
		if tt.change != nil {
			tt.change(&s)
		}
		if got := relaysOf(ForNode("w1", s)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestNextHop: by which address and link w1 reaches w2.
func TestNextHop(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*lb.State)
		want   string
	}{
		{"the address in its metadata", func(*lb.State) {}, toW2},
		{"its Node's address where that is on the link", func(s *lb.State) {
			s.Nodes["w2"] = lb.Node{Name: "w2", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.22"), netip.MustParseAddr("2001:db8::22")}}
		}, "v4 to w2 at 192.0.2.22 eth0, v6 to w2 at 2001:db8::22 eth0"},
		{"metadata without an address, of an older version", func(s *lb.State) { s.Links["w2"] = []lb.Link{link("eth0", "192.0.2.0/24", "2001:db8::/64")} },
			"v4 to w2 at invalid IP, v6 to w2 at invalid IP"},
		{"beyond a router", func(s *lb.State) { s.Links["w2"][0].Prefixes = link("", "198.51.100.0/24").Prefixes }, "v4 to w2 at invalid IP, v6 to w2 at invalid IP"},
		{"the LAN is recognized by its IPv4 subnet", func(s *lb.State) {
			for _, n := range []string{"w1", "w2", "w3"} {
				s.Links[n][0].Prefixes = s.Links[n][0].Prefixes[:1]
			}
		}, toW2},
		{"the link of the address before others", func(s *lb.State) {
			for i, n := range []string{"w1", "w2", "w3"} {
				l := link("adm0", "10.0.0.0/24")
				l.Addresses = []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.0.0.", i+1))}
				s.Links[n] = append([]lb.Link{l}, s.Links[n]...)
			}
		}, toW2},
		{"else another that announces", func(s *lb.State) {
			for i, n := range []string{"w1", "w2", "w3"} {
				s.Links[n] = []lb.Link{link("eth0"), link("adm0", "10.0.0.0/24")}
				s.Links[n][1].Addresses = []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.0.0.", i+1)), netip.MustParseAddr(fmt.Sprint("fe80::a:", i+1))}
			}
		}, "v4 to w2 at 10.0.0.2 adm0, v6 to w2 at fe80::a:2 adm0"},
		{"never a container network, alike on each node", func(s *lb.State) {
			for _, n := range []string{"w1", "w2", "w3"} {
				l := link("docker0", "172.17.0.0/16")
				l.Default, l.Addresses = false, []netip.Addr{netip.MustParseAddr("172.17.0.1")}
				s.Links[n] = []lb.Link{link("eth0"), l}
			}
		}, "v4 to w2 at invalid IP, v6 to w2 at invalid IP"},
		{"an advertisement for other nodes than before", func(s *lb.State) {
			s.L2Advertisements[0].NodeSelectors = []lb.Selector{{{Key: "name", Operator: lb.In, Values: []string{"w1"}}}}
			n := s.Nodes["w1"]
			n.Labels = map[string]string{"name": "w1"}
			s.Nodes["w1"] = n
		}, toW2},
	} {
		s := relayState()
		s.Here.Previous = owned("w2")
		tt.change(&s)
		if got := relaysOf(ForNode("w1", s)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestOwners: a plan has the owners on all nodes, since the next plan needs them.
func TestOwners(t *testing.T) {
	s := relayState()
	drain(&s, "w1")
	p := ForNode("w1", s)
	if p.Owners[v4] != "w2" || p.Owners[v6] != "w2" {
		t.Fatalf("owners %v", p.Owners)
	}
	s = relayState()
	s.Here.Previous = &lb.Previous{Owners: p.Owners, Relays: p.Relays}
	p = ForNode("w1", s)
	if got := relaysOf(p); got != toW2 {
		t.Errorf("back again: %q", got)
	}
	s.Here.Previous = &lb.Previous{Owners: p.Owners, Relays: p.Relays}
	if got := relaysOf(ForNode("w1", s)); got != toW2 {
		t.Errorf("and later: %q", got)
	}
}

// TestRelayStart: a relay has one Start until its address moves here again, and none if an earlier run of this speaker
// began it.
func TestRelayStart(t *testing.T) {
	s := relayState()
	at := func(second int64) time.Time { return time.Unix(1e9+second, 0) }
	next := func(second int64, want time.Time) {
		t.Helper()
		s.Now = at(second)
		p := ForNode("w1", s)
		s.Here.Previous, s.Here.Inherited = &lb.Previous{Owners: p.Owners, Relays: p.Relays}, nil
		if len(p.Relays) != 2 {
			t.Fatalf("the relays are %+v", p.Relays)
		}
		for _, r := range p.Relays {
			if !r.Start.Equal(want) {
				t.Errorf("the relay of %s began at %v, want %v", r.Address, r.Start, want)
			}
		}
	}
	s.Here.Previous = owned("w2")
	next(0, at(0))
	next(1, at(0))
	whole := s.Nodes["w1"]
	drain(&s, "w1")
	next(2, at(0)) // it goes on for relayGrace
	s.Nodes["w1"] = whole
	next(3, at(3))
	s.Services[0].Serving = false
	next(4, at(3)) // no endpoint is ready for a moment
	s.Services[0].Serving = true
	next(5, at(3))
	s.Here.Previous = nil
	s.Here.Inherited = map[netip.Addr]netip.Addr{v4: netip.MustParseAddr("192.0.2.3"), v6: netip.MustParseAddr("fe80::3")}
	next(6, time.Time{})
	next(7, time.Time{})
	s.Here.Previous = nil
	next(8, at(8)) // nothing inherited: the runner-up
}

// TestRelayGrace: a node goes on relaying for a while after an address went back to its former owner, as long as that
// lives.
func TestRelayGrace(t *testing.T) {
	s := relayState()
	s.Now = time.Unix(1e9, 0)
	s.Here.Previous = owned("w2")
	next := func() string {
		p := ForNode("w1", s)
		s.Here.Previous = &lb.Previous{Owners: p.Owners, Relays: p.Relays}
		return relaysOf(p)
	}
	if got := next(); got != toW2 {
		t.Fatalf("at first %q", got)
	}
	drain(&s, "w1")
	for _, after := range []time.Duration{0, relayGrace - time.Second} {
		s.Now = time.Unix(1e9, 0).Add(after)
		if got := next(); got != toW2 {
			t.Errorf("%v after it went back: %q", after, got)
		}
	}
	alive := s.Members
	s.Members = map[string]bool{"w1": true, "w3": true}
	if got := relaysOf(ForNode("w1", s)); got != "" {
		t.Errorf("the former owner is dead: %q", got)
	}
	s.Members = alive
	s.Now = time.Unix(1e9, 0).Add(relayGrace)
	if got := next(); got != "" {
		t.Errorf("when time is up: %q", got)
	}
}
