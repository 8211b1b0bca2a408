package plan

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

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
