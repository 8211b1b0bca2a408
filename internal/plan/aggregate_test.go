package plan

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// An aggregate stands while one of its addresses is advertised, and has the attributes of the oldest advertisement that
// makes it, whichever Service comes first.
func TestAggregate(t *testing.T) {
	service := func(name, address string, serving bool) lb.Service {
		return lb.Service{
			Key: lb.Key{Namespace: "default", Name: name}, Labels: map[string]string{"name": name},
			Addresses: []netip.Addr{netip.MustParseAddr(address)}, Serving: serving,
		}
	}
	selects := func(name string) lb.Scope {
		return lb.Scope{ServiceSelectors: []lb.Selector{{{Key: "name", Operator: lb.In, Values: []string{name}}}}}
	}
	for _, tt := range []struct {
		a, b bool
		want []string
	}{
		{true, true, []string{"192.0.2.0/24 localpref 10"}},
		{true, false, []string{"192.0.2.0/24 localpref 20"}},
		{false, true, []string{"192.0.2.0/24 localpref 10"}},
		{false, false, nil},
	} {
		s := lb.State{
			Nodes: map[string]lb.Node{"w1": {Name: "w1"}}, Members: map[string]bool{"w1": true},
			Pools:    []lb.Pool{{Name: "p", Ranges: []lb.Range{{From: netip.MustParseAddr("192.0.2.0"), To: netip.MustParseAddr("192.0.2.255")}}}},
			Peers:    []lb.Peer{{Name: "r", Address: netip.MustParseAddr("198.51.100.1")}},
			Services: []lb.Service{service("a", "192.0.2.1", tt.a), service("b", "192.0.2.2", tt.b)},
			BGPAdvertisements: []lb.BGPAdvertisement{
				{Name: "old", Scope: selects("b"), AggregationLength: 24, AggregationLengthV6: 128, LocalPref: 10},
				{Name: "young", Scope: selects("a"), AggregationLength: 24, AggregationLengthV6: 128, LocalPref: 20},
			},
		}
		var got []string
		for _, r := range ForNode("w1", s).Routes {
			got = append(got, fmt.Sprintf("%s localpref %d", r.Prefix, r.LocalPref))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("a serves %t, b serves %t: -want +got\n%s", tt.a, tt.b, diff)
		}
	}
}
