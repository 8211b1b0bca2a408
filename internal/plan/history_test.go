package plan

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestLeaveOver: plan after plan, as a speaker makes them, a drained node withdraws once and takes nothing back until
// it is uncordoned or the others are gone.
func TestLeaveOver(t *testing.T) {
	s := world(t, "v4only")
	step := func(after time.Duration, want string) {
		t.Helper()
		s.Now = s.Now.Add(after)
		p := ForNode("w1", s)
		if got := left(p, s); got != want {
			t.Fatalf("after %v: %q, want %q", after, got, want)
		}
		s.Here.Advertised = p.Advertised
	}
	whole, members := s.Nodes["w1"], maps.Clone(s.Members)
	step(0, "stays")
	do(t, &s, "drain w1")
	step(time.Second, "3s")
	step(time.Second, "2s")
	do(t, &s, "dead w2 w3")
	step(0, "stays")
	s.Members = maps.Clone(members)
	step(time.Second, "3s")
	step(3*time.Second, "at once")
	step(time.Second, "at once")
	do(t, &s, "dead w2 w3")
	step(0, "stays")
	s.Members = members
	step(0, "3s")
	step(3*time.Second, "at once")
	s.Nodes["w1"] = whole
	step(time.Second, "stays")
}

// TestRelays: plan after plan, a relay has one Start until its address moves here again, and none if an earlier run of
// this speaker began it. It goes on for relayGrace after the address went back to its former owner, as long as that
// lives.
func TestRelays(t *testing.T) {
	s := world(t, "previous w2")
	at := func(second int64) time.Time { return start.Add(time.Duration(second) * time.Second) }
	next := func(second int64, to string, began time.Time) {
		t.Helper()
		s.Now = at(second)
		p := ForNode("w1", s)
		s.Here.Previous, s.Here.Inherited = &lb.Previous{Owners: p.Owners, Relays: p.Relays}, nil
		if got := relaysOf(p); got != to {
			t.Fatalf("after %d s it relays to %q, want %q", second, got, to)
		}
		for _, r := range p.Relays.All() {
			if !r.Start.Equal(began) {
				t.Errorf("after %d s the relay of %s began at %v, want %v", second, r.Address, r.Start, began)
			}
		}
	}
	whole := s.Nodes["w1"]
	next(0, toW2, at(0))
	next(1, toW2, at(0))
	do(t, &s, "drain w1")
	next(2, toW2, at(0)) // w2 owns the address again
	s.Nodes["w1"] = whole
	next(3, toW2, at(3))
	do(t, &s, "idle")
	next(4, toW2, at(3)) // no endpoint is ready for a moment
	s.Services[0].Backends = servedOn("w2")
	next(5, toW2, at(3))
	do(t, &s, "drain w1")
	next(6, toW2, at(3))
	next(15, toW2, at(3))
	dead := s
	dead.Members = set([]string{"w1", "w3"})
	if got := relaysOf(ForNode("w1", dead)); got != "" {
		t.Errorf("the former owner is dead: %q", got)
	}
	next(16, "", at(3))
	s.Nodes["w1"] = whole
	s.Here.Previous = nil
	do(t, &s, "inherits w3")
	next(20, toW3, time.Time{})
	next(21, toW3, time.Time{})
	s.Here.Previous = nil
	next(22, toW2, at(22)) // nothing inherited: the runner-up
}

// TestOrder: in which steps one plan follows another.
func TestOrder(t *testing.T) {
	plan := func(orders string) Plan { return ForNode("w1", world(t, orders)) }
	open := plan("")
	none := plan("deleted")
	ranged := plan("ranged")
	half := plan("v4only")
	attracts := func(p Plan) (out []netip.Prefix) {
		for a := range p.Announcements.Keys() {
			out = append(out, single(a))
		}
		return slices.AppendSeq(out, p.Routes.Keys())
	}
	stays := func(p, next Plan, less bool) Plan {
		rest, got := p.Staying(next)
		if got != less {
			t.Errorf("less stays: %v, want %v", got, less)
		}
		return rest
	}
	if rest := stays(open, none, true); rest.Owners.Len() > 0 {
		t.Errorf("what goes keeps its owner: %v", rest.Owners)
	}
	all, one := []netip.Prefix{single(v4), single(v6), single(v4), single(v6)}, []netip.Prefix{single(v4), single(v4)}
	for _, tt := range []struct {
		name string
		got  Plan
		want []netip.Prefix
	}{
		{"nothing goes", stays(open, ranged, false), all},
		{"nothing comes early", stays(none, open, false), nil},
		{"all goes", stays(open, none, true), nil},
		{"one address goes", stays(open, half, true), one},
		{"open addresses do not wait", open.Waiting(none), all},
		{"ranges wait for their filter", ranged.Waiting(none), nil},
		{"what is there stays", ranged.Waiting(open), all},
		{"one was there", ranged.Waiting(half), one},
		{"the plan itself", open, all},
	} {
		if got := attracts(tt.got); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestRouterID(t *testing.T) {
	s := base()
	if got := ForNode("w3", s).RouterID; !got.Is4() {
		t.Errorf("router ID of a node without an IPv4 address: %s", got)
	}
	if got := ForNode("w1", s).RouterID.String(); got != "10.0.0.1" {
		t.Errorf("router ID of a node with one: %s", got)
	}
	s.Peers[1].RouterID = netip.MustParseAddr("1.2.3.4")
	if got := ForNode("w1", s).RouterID.String(); got != "1.2.3.4" {
		t.Errorf("router ID asked for by a peer: %s", got)
	}
}

// TestOrderDoesNotMatter: two speakers that read the same objects in another order agree.
func TestOrderDoesNotMatter(t *testing.T) {
	s := base()
	s.BGPAdvertisements = append(s.BGPAdvertisements, lb.BGPAdvertisement{AggregationLength: 24, AggregationLengthV6: 64})
	want := ForNode("w1", s)
	slices.Reverse(s.Peers)
	slices.Reverse(s.BGPAdvertisements)
	if diff := cmp.Diff(want, ForNode("w1", s), inside...); diff != "" {
		t.Errorf("plan depends on order (-want +got):\n%s", diff)
	}
}
