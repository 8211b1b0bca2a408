package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// aggregateState has an open Service and one with source ranges in one IPv4 and one IPv6 aggregate, and an open Service
// outside of both.
func aggregateState() lb.State {
	s := testState()
	s.BGPAdvertisements[0].AggregationLength, s.BGPAdvertisements[0].AggregationLengthV6 = 28, 124
	ranged := s.Services[0]
	ranged.Key.Name, ranged.Addresses = "ranged", []netip.Addr{v4.Next(), v6.Next()}
	ranged.Access = lb.Access{Restricted: true, Allow: prefixes("10.0.0.0/8")}
	far := s.Services[0]
	far.Key.Name, far.Addresses = "far", []netip.Addr{netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("2001:db8::100")}
	s.Services = append(s.Services, ranged, far)
	return s
}

func routesOf(p Plan) string {
	var out []string
	for _, r := range p.Routes {
		out = append(out, r.Prefix.String())
	}
	return strings.Join(out, " ")
}

// TestWithheldAggregate: a node whose filter is not in force does not advertise a route that covers an address with source
// ranges, though an open Service is in it too; it goes on with all other routes. The other nodes know it once its metadata
// says so, and a node that is drained leaves nothing to it.
func TestWithheldAggregate(t *testing.T) {
	const all, open = "192.0.2.0/28 192.0.2.96/28 2001:db8::10/124 2001:db8::100/124", "192.0.2.96/28 2001:db8::100/124"
	s := aggregateState()
	if got := routesOf(ForNode("w1", s)); got != all {
		t.Fatalf("with a filter it advertises %s", got)
	}
	for _, known := range []bool{false, true} {
		s := aggregateState()
		s.Here.Unfiltered = true
		if known {
			s.Unfit = map[string]lb.Unfit{"w1": lb.Unfiltered}
		}
		p := ForNode("w1", s)
		if got := routesOf(p); got != open {
			t.Errorf("known %v: it advertises %s, want %s", known, got, open)
		}
		for a := range p.Advertised {
			if !slices.Contains(s.Services[2].Addresses, a) {
				t.Errorf("known %v: %s counts as advertised", known, a)
			}
		}
		want := map[string]lb.Reason{"web": lb.FilterNotInForce, "ranged": lb.FilterNotInForce, "far": lb.Announced}
		for _, v := range p.Verdicts {
			if v.BGP.Here != want[v.Service.Name] || slices.Contains(v.BGP.Nodes, "w1") != (v.Service.Name == "far") {
				t.Errorf("known %v: %s is %s here, advertised by %v", known, v.Service.Name, v.BGP.Here, v.BGP.Nodes)
			}
			if named := len(v.BGP.Peers) > 0; named != (v.Service.Name == "far") {
				t.Errorf("known %v: %s goes to %v", known, v.Service.Name, v.BGP.Peers)
			}
		}
	}
	s = aggregateState()
	gone := s.Services[1]
	s.Services = slices.Delete(s.Services, 1, 2)
	s.Leaving = []lb.Leaving{{Addresses: gone.Addresses, Served: gone}}
	s.Here.Unfiltered = true
	if got := routesOf(ForNode("w1", s)); got != open {
		t.Errorf("while the Service with ranges leaves, it advertises %s, want %s", got, open)
	}
	s = aggregateState()
	s.Members = map[string]bool{"w1": true, "w2": true}
	s.Unfit = map[string]lb.Unfit{"w1": lb.Unfiltered}
	s.Here.Advertised = ForNode("w2", s).Advertised
	drain(&s, "w2")
	for _, r := range ForNode("w2", s).Routes {
		if left := slices.Contains(strings.Fields(open), r.Prefix.String()); r.Leaving != left {
			t.Errorf("drained, w2 leaves %s to the node without a filter: %v", r.Prefix, r.Leaving)
		}
	}
}

// TestRefusedByKernel: one Service whose ranges this node's kernel refuses, beside 1,000 with ranges, costs that Service its own
// announcements and routes here, and nothing else anything.
func TestRefusedByKernel(t *testing.T) {
	state := func() lb.State {
		s := testState()
		template := s.Services[0]
		template.Access = lb.Access{Restricted: true, Allow: prefixes("10.0.0.0/8", "2001:db8:1::/48")}
		template.Ports = []lb.Port{{Protocol: "TCP", Port: 80}}
		s.Services = nil
		a4, a6 := netip.MustParseAddr("10.1.0.0"), netip.MustParseAddr("fd01::")
		s.Pools[0].Ranges = []lb.Range{{From: a4, To: netip.MustParseAddr("10.1.255.255")}, {From: a6, To: netip.MustParseAddr("fd01::ffff")}}
		for i := range 1001 {
			sv := template
			sv.Key.Name, sv.Addresses = fmt.Sprintf("s%04d", i), []netip.Addr{a4, a6}
			s.Services, a4, a6 = append(s.Services, sv), a4.Next(), a6.Next()
		}
		return s
	}
	s := state()
	before := ForNode("w1", s)
	victim := slices.IndexFunc(before.Verdicts, func(v Verdict) bool { return v.L2.Here == lb.Announced })
	s.Here.Refused = map[lb.Key]bool{s.Services[victim].Key: true}
	after := ForNode("w1", s)
	want := before
	gone := func(a netip.Addr) bool { return slices.Contains(s.Services[victim].Addresses, a) }
	want.Announcements = slices.DeleteFunc(slices.Clone(before.Announcements), func(a lb.Announcement) bool { return gone(a.Address) })
	want.Routes = slices.DeleteFunc(slices.Clone(before.Routes), func(r lb.Route) bool { return gone(r.Prefix.Addr()) })
	if len(want.Announcements) != len(before.Announcements)-2 || len(want.Routes) != len(before.Routes)-2 {
		t.Fatal("the test withholds nothing")
	}
	if diff := cmp.Diff(want.Announcements, after.Announcements, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("announcements: -want +got\n%s", diff)
	}
	if diff := cmp.Diff(want.Routes, after.Routes, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("routes: -want +got\n%s", diff)
	}
	for i, v := range after.Verdicts {
		here := v.L2.Here == before.Verdicts[i].L2.Here && v.BGP.Here == lb.Announced
		if i == victim {
			here = v.L2.Here == lb.FilterNotInForce && v.BGP.Here == lb.FilterNotInForce
		}
		if !here {
			t.Errorf("%s: layer 2 %s, BGP %s", v.Service, v.L2.Here, v.BGP.Here)
		}
	}
	// An aggregate stays: the kernel closes the one address in it.
	s.BGPAdvertisements[0].AggregationLength, s.BGPAdvertisements[0].AggregationLengthV6 = 16, 112
	if got := routesOf(ForNode("w1", s)); got != "10.1.0.0/16 fd01::/112" {
		t.Errorf("with an aggregate it advertises %s", got)
	}
	// So does an address that another Service shares, whose list the kernel takes.
	s = state()
	other := s.Services[victim]
	other.Key.Name, other.Ports = "t", []lb.Port{{Protocol: "TCP", Port: 81}}
	s.Services = append(s.Services, other)
	s.Here.Refused = map[lb.Key]bool{s.Services[victim].Key: true}
	p := ForNode("w1", s)
	if v := p.Verdicts[len(p.Verdicts)-1]; !p.announces(other.Addresses[0]) || v.L2.Here != lb.Announced || p.Verdicts[victim].L2.Here != lb.FilterNotInForce {
		t.Errorf("a shared address is announced: %v; %s and %s", p.announces(other.Addresses[0]), v.L2.Here, p.Verdicts[victim].L2.Here)
	}
}

// TestOwnLinkWithheld: a node does not filter an address on its own link, so that it announces none that has source ranges.
func TestOwnLinkWithheld(t *testing.T) {
	s := testState()
	s.Here.Addresses = []netip.Addr{v4}
	if p := ForNode("w1", s); !p.announces(v4) || !p.announces(v6) {
		t.Error("without source ranges it is announced like any other")
	}
	s.Services[0].Access = lb.Access{Deny: prefixes("10.0.0.0/8", "2001:db8:1::/48")}
	p := ForNode("w1", s)
	if p.announces(v4) || !p.announces(v6) || routesOf(p) != "2001:db8::10/128" {
		t.Errorf("it announces %v and advertises %s", p.Announcements, routesOf(p))
	}
	if v := p.Verdicts[0]; v.L2.Here != lb.FilterNotInForce || v.BGP.Here != lb.FilterNotInForce || !slices.Equal(v.BGP.Peers, []string{"r1v6"}) {
		t.Errorf("layer 2 %s, BGP %s to %v", v.L2.Here, v.BGP.Here, v.BGP.Peers)
	}
}

// TestStandInIsNotWithheld: a node whose filter is not in force answers for another one with the MAC of that node, whose
// filter is.
func TestStandInIsNotWithheld(t *testing.T) {
	s := relayState()
	s.Services[0].Access = lb.Access{Restricted: true, Allow: prefixes("192.0.2.0/24")}
	s.Links["w1"][0].MAC = [6]byte{2, 0, 0, 0, 0, 1}
	s.SpeakerDown = map[string]bool{"w1": true}
	s.Here.Unfiltered = true
	if p := ForNode("w2", s); !p.announces(v4) || p.Announcements[0].MAC != s.Links["w1"][0].MAC {
		t.Errorf("it announces %+v", p.Announcements)
	}
}

func attracts(p Plan) []string {
	var out []string
	for _, a := range p.Announcements {
		out = append(out, a.Address.String())
	}
	for _, r := range p.Routes {
		out = append(out, r.Prefix.String())
	}
	return out
}

func stays(p, next Plan) Plan {
	rest, _ := p.Staying(next)
	return rest
}

func TestOrder(t *testing.T) {
	s := filterState()
	open := ForNode("w1", s)
	s.Services = nil
	none := ForNode("w1", s)
	s = filterState()
	s.Services[0].Access = lb.Access{Restricted: true}
	ranged := ForNode("w1", s)
	s = filterState()
	s.Services[0].Addresses = s.Services[0].Addresses[:1]
	half := ForNode("w1", s)

	all := attracts(open)
	if len(all) != 4 {
		t.Fatalf("w1 attracts %v", all)
	}
	for _, tt := range []struct {
		name string
		got  Plan
		want []string
	}{
		{"nothing goes", stays(open, ranged), all},
		{"nothing comes early", stays(none, open), nil},
		{"all goes", stays(open, none), nil},
		{"one address goes", stays(open, half), []string{"192.0.2.10", "192.0.2.10/32"}},
		{"open addresses do not wait", open.Waiting(none), all},
		{"ranges wait for their filter", ranged.Waiting(none), nil},
		{"what is there stays", ranged.Waiting(open), all},
		{"one was there", ranged.Waiting(half), []string{"192.0.2.10", "192.0.2.10/32"}},
	} {
		if diff := cmp.Diff(tt.want, attracts(tt.got)); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.name, diff)
		}
	}
	if _, less := open.Staying(ranged); less {
		t.Error("less stays although nothing goes")
	}
	if _, less := open.Staying(half); !less {
		t.Error("one address goes, and no less stays")
	}
	if diff := cmp.Diff(all, attracts(open)); diff != "" {
		t.Errorf("the plan itself has changed: %s", diff)
	}
}
