package plan

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestElsewhere: the node that writes the condition names the peers of nodes that have others than it has.
func TestElsewhere(t *testing.T) {
	zone := func(z string) []lb.Selector {
		return []lb.Selector{{{Key: "zone", Operator: lb.In, Values: []string{z}}}}
	}
	racks := func(s *lb.State) {
		s.Peers[0].NodeSelectors, s.Peers[1].NodeSelectors = zone("a"), zone("a")
		s.Peers = append(s.Peers,
			lb.Peer{Name: "r2v4", Address: netip.MustParseAddr("10.0.1.100"), NodeSelectors: zone("b")},
			lb.Peer{Name: "r2v6", Address: netip.MustParseAddr("fd01::100"), NodeSelectors: zone("b")})
	}
	for _, tt := range []struct {
		name   string
		change func(*lb.State)
		want   string
	}{
		{"all have the same peers", func(*lb.State) {}, ""},
		{"each rack has its own router", racks, "w3 to r2v4, r2v6"},
		{"a rack without a session is not named", func(s *lb.State) { racks(s); s.Unfit = map[string]lb.Unfit{"w3": lb.Sessionless} }, ""},
		{"an advertisement for one rack only", func(s *lb.State) { racks(s); s.BGPAdvertisements[0].NodeSelectors = zone("a") }, ""},
		{"an advertisement to one of the peers", func(s *lb.State) { racks(s); s.BGPAdvertisements[0].Peers = []string{"r1v4", "r2v6"} }, "w3 to r2v6"},
		{"many racks", func(s *lb.State) {
			s.Peers = s.Peers[:1]
			for i := range 20 {
				name := fmt.Sprintf("x%02d", i)
				s.Nodes[name] = lb.Node{Name: name, Labels: map[string]string{"zone": name}}
				s.Members[name] = true
				s.Peers = append(s.Peers, lb.Peer{Name: "r" + name, Address: netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), NodeSelectors: zone(name)})
			}
		}, "x00 to r1v4, rx00; x01 to r1v4, rx01"},
	} {
		s := testState()
		tt.change(&s)
		for _, node := range []string{"w1", "w2"} {
			o := ForNode(node, s).Verdicts[0].BGP
			if want := map[bool]string{true: tt.want}[o.Writer]; o.Elsewhere != want {
				t.Errorf("%s: %s says %q, want %q", tt.name, node, o.Elsewhere, want)
			}
		}
	}
}
