package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// lanOf returns base with n Services of one address each.
func lanOf(n int) lb.State {
	s := base()
	first := s.Services[0]
	s.Services = nil

	for i := range n {
		one := new(*first)
		one.Key.Name = fmt.Sprintf("%02d", i)
		one.AnnouncedBy = nil
		one.Addresses = []netip.Addr{numbered(v4, 2<<8+20+i)}
		s.Services = append(s.Services, one)
	}

	return s
}

// TestConcerned checks that the first plan after a node changed has all that this node does about addresses which the
// node owns, answers for, or owned.
func TestConcerned(t *testing.T) {
	for name, tt := range map[string]struct {
		before, change string
	}{
		"an owner dies":                      {"", "dead w3"},
		"an owner's speaker ends":            {"", "down w3"},
		"a node that stands in dies":         {"down w2", "dead w3"},
		"the speaker of a stand-in ends":     {"down w2", "down w3"},
		"the former owner of addresses dies": {"previous w3", "dead w3"},
	} {
		t.Run(name, func(t *testing.T) {
			s, m := lanOf(30), Memory{stagedFrom: 1}
			if tt.before != "" {
				do(t, &s, tt.before)
				everywhere(&s)
			}
			m.ForNode("w1", s)

			s.Members = maps.Clone(s.Members)
			s.SpeakerDown = maps.Clone(s.SpeakerDown)
			do(t, &s, tt.change)
			first, want := m.ForNode("w1", s), ForNode("w1", s)
			if !m.IsLate() {
				t.Error("the first plan leaves no rest")
			}
			diff := cmp.Diff(sent(want), sent(first), inside...)
			if diff != "" {
				t.Errorf("the first plan: -ForNode +Memory\n%s", diff)
			}
		})
	}
}

// everywhere gives all addresses the previous owner that the order gave one.
func everywhere(s *lb.State) {
	if s.Here.Previous == nil {
		return
	}

	owners := map[netip.Addr]string{}
	for _, one := range s.Services {
		owners[one.Addresses[0]] = s.Here.Previous.Owners.Of(v4)
	}
	s.Here.Previous = &lb.Previous{Owners: lb.MapOf(owners)}
}

// sent returns which node owns what by a plan, and what this node answers and relays.
func sent(p Plan) []any {
	return []any{
		maps.Collect(p.Owners.All()),
		maps.Collect(p.Announcements.All()),
		maps.Collect(p.Relays.All()),
	}
}

// TestConcernedInARow checks nodes that die one after another, as in a rack. A first plan moves the addresses of each,
// but the rest does not wait for ever.
func TestConcernedInARow(t *testing.T) {
	s, m := largeCluster(2*manyGroups, "L2"), Memory{}
	m.ForNode("node1", s)

	for i := range maxStages + 2 {
		s.Members = maps.Clone(s.Members)
		delete(s.Members, fmt.Sprint("node", 2+i))
		got, want := m.ForNode("node1", s), ForNode("node1", s)
		if !got.Owners.Same(want.Owners) {
			t.Errorf("death %d: the plan has not all owners", i)
		}
		isRestLeft := i != maxStages
		if m.IsLate() != isRestLeft {
			t.Errorf("death %d: the plan leaves a rest: %v, want %v", i, m.IsLate(), isRestLeft)
		}
		if !m.IsLate() && !reflect.DeepEqual(got, want) {
			t.Errorf("death %d: -ForNode +Memory\n%s", i, cmp.Diff(want, got, inside...))
		}
	}
}

// TestUnowned checks that addresses without an owner are planned first if a node may come back to own them, and wait if
// BGP alone advertises them.
func TestUnowned(t *testing.T) {
	for name, tt := range map[string]struct {
		orders string
		isLate bool
	}{
		"BGP alone advertises them":          {"nol2; dead w3", true},
		"the only node that may own is back": {"l2nodes w3; dead w3", false},
	} {
		t.Run(name, func(t *testing.T) {
			s, m := lanOf(30), Memory{stagedFrom: 1}
			do(t, &s, tt.orders)
			p := m.ForNode("w1", s)
			if p.Owners.Len() > 0 {
				t.Fatalf("%d addresses have an owner", p.Owners.Len())
			}

			s.Members = set([]string{"w1", "w2", "w3"})
			m.ForNode("w1", s)
			if m.IsLate() != tt.isLate {
				t.Errorf("the first plan leaves a rest: %v", m.IsLate())
			}
		})
	}
}
