package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

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
