package plan

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

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
