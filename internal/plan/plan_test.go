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

var (
	v4 = netip.MustParseAddr("192.0.2.10")
	v6 = netip.MustParseAddr("2001:db8::10")
)

// testState has three nodes, one dual-stack pool, one Service and both kinds of advertisement; each test changes what
// it is about.
func testState() lb.State {
	labels := func(zone string) map[string]string { return map[string]string{"zone": zone} }
	everywhere := map[string]bool{"w1": true, "w2": true, "w3": true}
	return lb.State{
		Nodes: map[string]lb.Node{
			"w1": {Name: "w1", Labels: labels("a"), Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
			"w2": {Name: "w2", Labels: labels("a"), Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}},
			"w3": {Name: "w3", Labels: labels("b"), Addresses: []netip.Addr{netip.MustParseAddr("fd00::3")}},
		},
		Members: everywhere,
		Pools: []lb.Pool{{Name: "lan", Ranges: []lb.Range{
			{From: netip.MustParseAddr("192.0.2.0"), To: netip.MustParseAddr("192.0.2.255")},
			{From: netip.MustParseAddr("2001:db8::"), To: netip.MustParseAddr("2001:db8::ffff")},
		}}},
		Services: []lb.Service{{
			Key: lb.Key{Namespace: "default", Name: "web"}, Labels: map[string]string{"app": "web"},
			Addresses: []netip.Addr{v4, v6}, Serving: true, ServingNodes: map[string]bool{"w2": true},
		}},
		L2Advertisements:  []lb.L2Advertisement{{Name: "l2"}},
		BGPAdvertisements: []lb.BGPAdvertisement{{Name: "bgp", AggregationLength: 32, AggregationLengthV6: 128}},
		Peers: []lb.Peer{
			{Name: "r1v4", Address: netip.MustParseAddr("10.0.0.100")},
			{Name: "r1v6", Address: netip.MustParseAddr("fd00::100")},
		},
	}
}

// text returns the plans of nodes as text.
func text(s lb.State, nodes ...string) string {
	var b strings.Builder
	for _, name := range nodes {
		p := ForNode(name, s)
		fmt.Fprintf(&b, "%s:\n", name)
		for _, a := range p.Announcements {
			fmt.Fprintf(&b, "  announce %s links %v\n", a.Address, a.Links)
		}
		for _, r := range p.Routes {
			fmt.Fprintf(&b, "  route %s to %v localpref %d communities %v\n", r.Prefix, r.Peers, r.LocalPref, r.Communities)
			if r.Prepend != 0 || r.MED.Sent {
				fmt.Fprintf(&b, "    prepend %d med %s\n", r.Prepend, r.MED)
			}
		}
		for _, v := range p.Verdicts {
			fmt.Fprintf(&b, "  l2 %s here %s on %v; bgp %s here %s on %v\n", v.L2.Reason, v.L2.Here, v.L2.Nodes, v.BGP.Reason, v.BGP.Here, v.BGP.Nodes)
		}
	}
	return b.String()
}

func TestForNode(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*lb.State)
		want   string
	}{
		{"everything selected", func(*lb.State) {}, `
w1:
  announce 192.0.2.10 links []
  announce 2001:db8::10 links []
  route 192.0.2.10/32 to [r1v4] localpref 0 communities []
  route 2001:db8::10/128 to [r1v6] localpref 0 communities []
  l2 Announced here Announced on [w1]; bgp Announced here Announced on [w1 w2 w3]
w2:
  route 192.0.2.10/32 to [r1v4] localpref 0 communities []
  route 2001:db8::10/128 to [r1v6] localpref 0 communities []
  l2 Announced here NotOwner on [w1]; bgp Announced here Announced on [w1 w2 w3]
`},
		{"the owner dies", func(s *lb.State) { s.Members = map[string]bool{"w2": true, "w3": true} }, `
w1:
  l2 Announced here NotMember on [w2]; bgp Announced here NotMember on [w2 w3]
w2:
  announce 192.0.2.10 links []
  announce 2001:db8::10 links []
  route 192.0.2.10/32 to [r1v4] localpref 0 communities []
  route 2001:db8::10/128 to [r1v6] localpref 0 communities []
  l2 Announced here Announced on [w2]; bgp Announced here Announced on [w2 w3]
`},
		{"no serving endpoint", func(s *lb.State) { s.Services[0].Serving = false }, `
w1:
  l2 NoServingEndpoint here NoServingEndpoint on []; bgp NoServingEndpoint here NoServingEndpoint on []
`},
		{"policy Local", func(s *lb.State) {
			s.Services[0].Local = true
			s.Services[0].ServingNodes = map[string]bool{"w3": true}
		}, `
w1:
  l2 Announced here NoLocalEndpoint on [w3]; bgp Announced here NoLocalEndpoint on [w3]
w3:
  announce 192.0.2.10 links []
  announce 2001:db8::10 links []
  route 192.0.2.10/32 to [r1v4] localpref 0 communities []
  route 2001:db8::10/128 to [r1v6] localpref 0 communities []
  l2 Announced here Announced on [w3]; bgp Announced here Announced on [w3]
`},
		{"excluded and without network", func(s *lb.State) {
			n := s.Nodes["w2"]
			n.Excluded = true
			s.Nodes["w2"] = n
			n = s.Nodes["w1"]
			n.NetworkUnavailable = true
			s.Nodes["w1"] = n
		}, `
w1:
  l2 Announced here NetworkUnavailable on [w3]; bgp Announced here NetworkUnavailable on [w3]
w2:
  l2 Announced here NodeExcluded on [w3]; bgp Announced here NodeExcluded on [w3]
`},
		{"no node may announce", func(s *lb.State) {
			s.L2Advertisements[0].NodeSelectors = []lb.Selector{{{Key: "zone", Operator: lb.In, Values: []string{"none"}}}}
			s.BGPAdvertisements = nil
		}, `
w1:
  l2 NoEligibleNode here NoEligibleNode on []; bgp NoAdvertisement here NoAdvertisement on []
`},
		{"links of several advertisements", func(s *lb.State) {
			s.BGPAdvertisements = nil
			s.L2Advertisements = []lb.L2Advertisement{{Name: "a", Links: []string{"eth1"}}, {Name: "b", Links: []string{"eth0", "eth1"}}}
		}, `
w1:
  announce 192.0.2.10 links [eth0 eth1]
  announce 2001:db8::10 links [eth0 eth1]
  l2 Announced here Announced on [w1]; bgp NoAdvertisement here NoAdvertisement on []
`},
		{"one family has no peer", func(s *lb.State) { s.L2Advertisements = nil; s.Peers = s.Peers[:1] }, `
w1:
  route 192.0.2.10/32 to [r1v4] localpref 0 communities []
  l2 NoAdvertisement here NoAdvertisement on []; bgp NoPeer here Announced on [w1 w2 w3]
`},
		{"no peer on this node", func(s *lb.State) {
			s.L2Advertisements = nil
			for i := range s.Peers {
				s.Peers[i].NodeSelectors = []lb.Selector{{{Key: "zone", Operator: lb.In, Values: []string{"b"}}}}
			}
		}, `
w1:
  l2 NoAdvertisement here NoAdvertisement on []; bgp Announced here NoPeer on [w3]
`},
		{"a peer that is this node itself", func(s *lb.State) {
			s.L2Advertisements = nil
			s.Peers[0].Unusable = map[string]lb.Reason{"w1": lb.PeerIsSelf}
		}, `
w1:
  route 2001:db8::10/128 to [r1v6] localpref 0 communities []
  l2 NoAdvertisement here NoAdvertisement on []; bgp Announced here Announced on [w1 w2 w3]
w2:
  route 192.0.2.10/32 to [r1v4] localpref 0 communities []
  route 2001:db8::10/128 to [r1v6] localpref 0 communities []
  l2 NoAdvertisement here NoAdvertisement on []; bgp Announced here Announced on [w1 w2 w3]
`},
		{"aggregates, communities and peers", func(s *lb.State) {
			s.L2Advertisements = nil
			s.Peers = append(s.Peers, lb.Peer{Name: "r2v4", Address: netip.MustParseAddr("10.0.0.200")})
			s.BGPAdvertisements = []lb.BGPAdvertisement{
				{AggregationLength: 24, AggregationLengthV6: 64, Communities: []lb.Community{{A: 65000, B: 2}, {A: 65000, B: 1}}},
				{AggregationLength: 32, AggregationLengthV6: 128, Peers: []string{"r2v4"}, LocalPref: 200},
			}
		}, `
w1:
  route 192.0.2.0/24 to [r1v4 r2v4] localpref 0 communities [65000:1 65000:2]
  route 192.0.2.10/32 to [r2v4] localpref 200 communities []
  route 2001:db8::/64 to [r1v6] localpref 0 communities [65000:1 65000:2]
  l2 NoAdvertisement here NoAdvertisement on []; bgp Announced here Announced on [w1 w2 w3]
`},
		{"one session for both families", func(s *lb.State) {
			s.L2Advertisements = nil
			for i := range s.Peers {
				s.Peers[i].DualStack = s.Peers[i].Name == "r1v6"
			}
		}, `
w1:
  route 192.0.2.10/32 to [r1v4 r1v6] localpref 0 communities []
  route 2001:db8::10/128 to [r1v6] localpref 0 communities []
  l2 NoAdvertisement here NoAdvertisement on []; bgp Announced here Announced on [w1 w2 w3]
`},
		{"two local preferences for one route", func(s *lb.State) {
			s.L2Advertisements = nil
			s.BGPAdvertisements = append(s.BGPAdvertisements, s.BGPAdvertisements[0])
			s.BGPAdvertisements[0].LocalPref, s.BGPAdvertisements[0].MED, s.BGPAdvertisements[0].Prepend = 40, lb.MED{Sent: true}, 2
			s.BGPAdvertisements[1].LocalPref = 50
		}, `
w1:
  route 192.0.2.10/32 to [r1v4] localpref 40 communities []
    prepend 2 med 0
  route 2001:db8::10/128 to [r1v6] localpref 40 communities []
    prepend 2 med 0
  l2 NoAdvertisement here NoAdvertisement on []; bgp ConflictingAdvertisements here Announced on [w1 w2 w3]
`},
		{"an address that was cut from its pool stays announced", func(s *lb.State) {
			s.BGPAdvertisements = nil
			s.L2Advertisements[0].Pools = []string{"lan"}
			s.Pools[0].Ranges = s.Pools[0].Ranges[1:]
			s.Services[0].Record = lb.Origins{{Address: v4, Pool: "lan"}}
		}, `
w1:
  announce 192.0.2.10 links []
  announce 2001:db8::10 links []
  l2 Announced here Announced on [w1]; bgp NoAdvertisement here NoAdvertisement on []
`},
		{"no address", func(s *lb.State) { s.Services[0].Addresses = nil }, `
w1:
  l2 NoAddress here NoAddress on []; bgp NoAddress here NoAddress on []
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := testState()
			tt.change(&s)
			want := strings.TrimPrefix(tt.want, "\n")
			var nodes []string
			for line := range strings.Lines(want) {
				if name, ok := strings.CutSuffix(line, ":\n"); ok {
					nodes = append(nodes, name)
				}
			}
			if diff := cmp.Diff(want, text(s, nodes...)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRouterID(t *testing.T) {
	s := testState()
	for _, tt := range []struct{ node, want string }{{"w1", "10.0.0.1"}, {"w3", ForNode("w3", s).RouterID.String()}} {
		if got := ForNode(tt.node, s).RouterID; got.String() != tt.want || !got.Is4() {
			t.Errorf("router ID of %s: %s, want %s", tt.node, got, tt.want)
		}
	}
	s.Peers[1].RouterID = netip.MustParseAddr("1.2.3.4")
	if got := ForNode("w1", s).RouterID.String(); got != "1.2.3.4" {
		t.Errorf("router ID asked for by a peer: %s", got)
	}
}

// TestOrderDoesNotMatter: two speakers that read the same objects in another order agree.
func TestOrderDoesNotMatter(t *testing.T) {
	s := testState()
	s.BGPAdvertisements = append(s.BGPAdvertisements, lb.BGPAdvertisement{AggregationLength: 24, AggregationLengthV6: 64})
	want := text(s, "w1", "w2", "w3")
	slices.Reverse(s.Peers)
	slices.Reverse(s.BGPAdvertisements)
	if diff := cmp.Diff(want, text(s, "w1", "w2", "w3")); diff != "" {
		t.Errorf("plan depends on order (-want +got):\n%s", diff)
	}
}

func BenchmarkForNode10k(b *testing.B) {
	s := lb.State{Nodes: map[string]lb.Node{}, Members: map[string]bool{}, Links: map[string][]lb.Link{}, L2Advertisements: []lb.L2Advertisement{{Name: "l2"}}}
	for i := range 1000 {
		name := fmt.Sprint("node", i)
		s.Nodes[name], s.Members[name] = lb.Node{Name: name}, true
		s.Links[name] = []lb.Link{{Name: "eth0", Default: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
	}
	from := netip.MustParseAddr("10.0.0.0")
	s.Pools = []lb.Pool{{Name: "p", Ranges: []lb.Range{{From: from, To: netip.MustParseAddr("10.0.255.255")}}}}
	for i := range 10_000 {
		s.Services = append(s.Services, lb.Service{Key: lb.Key{Namespace: "ns", Name: fmt.Sprint(i)}, Addresses: []netip.Addr{from}, Serving: true})
		from = from.Next()
	}
	for b.Loop() {
		ForNode("node1", s)
	}
}
