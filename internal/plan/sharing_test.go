package plan

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestSharedAddressHasOneOwner: with any order of families, any advertisements, and any sharing between its Services.
//
// Trap: an election for each Service gives a shared address two owners (Cilium #48419).
func TestSharedAddressHasOneOwner(t *testing.T) {
	only := func(zone string) []lb.Selector {
		return []lb.Selector{{{Key: "zone", Operator: lb.In, Values: []string{zone}}}}
	}
	app := func(name string) []lb.Selector {
		return []lb.Selector{{{Key: "app", Operator: lb.In, Values: []string{name}}}}
	}
	for _, tt := range []struct {
		name   string
		change func(a, b *lb.Service, s *lb.State)
		// owned: some node owns the shared address.
		owned bool
	}{
		{"both families, other order", func(_, b *lb.Service, _ *lb.State) { b.Addresses = []netip.Addr{v6, v4} }, true},
		{"one family of the other", func(_, b *lb.Service, _ *lb.State) { b.Addresses = []netip.Addr{v6} }, true},
		{"advertisements on overlapping nodes", func(_, _ *lb.Service, s *lb.State) {
			s.L2Advertisements = []lb.L2Advertisement{
				{Scope: lb.Scope{ServiceSelectors: app("a")}},
				{Scope: lb.Scope{ServiceSelectors: app("b"), NodeSelectors: only("a")}},
			}
		}, true},
		{"advertisements on disjoint nodes: no node may announce both", func(_, _ *lb.Service, s *lb.State) {
			s.L2Advertisements = []lb.L2Advertisement{
				{Scope: lb.Scope{ServiceSelectors: app("a"), NodeSelectors: only("b")}},
				{Scope: lb.Scope{ServiceSelectors: app("b"), NodeSelectors: only("a")}},
			}
		}, false},
		{"one without endpoints does not count", func(_, b *lb.Service, s *lb.State) {
			b.Serving = false
			s.L2Advertisements = []lb.L2Advertisement{
				{Scope: lb.Scope{ServiceSelectors: app("a"), NodeSelectors: only("b")}},
				{Scope: lb.Scope{ServiceSelectors: app("b"), NodeSelectors: only("a")}},
			}
		}, true},
	} {
		// Many addresses, so that the hash cannot hide a fault.
		shared := netip.MustParseAddr("2001:db8::100")
		for range 64 {
			s := testState()
			b := s.Services[0]
			s.Services[0].Labels, s.Services[0].Addresses = map[string]string{"app": "a"}, []netip.Addr{v4, v6}
			b.Key.Name, b.Labels = "web2", map[string]string{"app": "b"}
			s.Services = append(s.Services, b)
			tt.change(&s.Services[0], &s.Services[1], &s)
			for i := range s.Services {
				for j, a := range s.Services[i].Addresses {
					if a == v6 {
						s.Services[i].Addresses[j] = shared
					}
				}
			}
			if owners := ownersOf(s, shared); len(owners) > 1 || tt.owned != (len(owners) == 1) {
				t.Fatalf("%s: %s is owned by %v", tt.name, shared, owners)
			}
			shared = shared.Next()
		}
	}
}

func ownersOf(s lb.State, a netip.Addr) (owners []string) {
	for name := range s.Nodes {
		for _, announcement := range ForNode(name, s).Announcements {
			if announcement.Address == a {
				owners = append(owners, name)
			}
		}
	}
	return owners
}

// TestSharerOfAnotherNamespace: whatever a tenant writes on a Service that shares another's address, the owner of the address
// stays, and the other Service stays announced. His own is announced where that node suits it.
func TestSharerOfAnotherNamespace(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*lb.Service)
		own  lb.Reason
	}{
		{"nothing", func(*lb.Service) {}, lb.Announced},
		{"no node", func(s *lb.Service) { s.NodeSelectors = []lb.Selector{{{Operator: lb.In}}} }, lb.NoEligibleNode},
		{"a lower address", func(s *lb.Service) { s.Addresses = append(s.Addresses, netip.MustParseAddr("192.0.2.1")) }, lb.Announced},
		{"no endpoint", func(s *lb.Service) { s.Serving = false }, lb.NoServingEndpoint},
	} {
		for i := range 16 { // many addresses, so that the hash cannot hide a fault
			a := netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)})
			s := testState()
			s.Services[0].Addresses = []netip.Addr{a}
			want := ownersOf(s, a)
			evil := s.Services[0]
			evil.Key, evil.Created = lb.Key{Namespace: "a", Name: "evil"}, evil.Created.Add(time.Second)
			tt.edit(&evil)
			s.Services = append(s.Services, evil)
			if got := ownersOf(s, a); !slices.Equal(got, want) {
				t.Errorf("%s: %s is owned by %v, without the other tenant by %v", tt.name, a, got, want)
			}
			verdicts := ForNode("w1", s).Verdicts
			if verdicts[0].L2.Reason != lb.Announced || verdicts[1].L2.Reason != tt.own {
				t.Errorf("%s: the Services are %s and %s", tt.name, verdicts[0].L2.Reason, verdicts[1].L2.Reason)
			}
		}
	}
}
