package ipam

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

func TestChoosePool(t *testing.T) {
	red := lb.Selector{{Key: "colour", Operator: lb.In, Values: []string{"red"}}}
	notRed := lb.Selector{{Key: "colour", Operator: lb.NotIn, Values: []string{"red"}}}
	nothing := lb.Selector{{Operator: lb.In}}
	labelled := func(s *lb.Service) { s.Labels = map[string]string{"colour": "red"} }
	elsewhere := func(s *lb.Service) { s.Key.Namespace = "elsewhere" }
	renewing := func(s *lb.Service) { s.Renew = true }
	one, two, three := "192.0.2.1", "198.51.100.1", "203.0.113.1"
	selecting := with(pool("a", one), allocation(lb.Allocation{ByNamespace: true, NamespaceSelectors: []lb.Selector{red}}))
	for _, tt := range []struct {
		name    string
		pools   []lb.Pool
		service *lb.Service
		want    string
	}{
		{"by name", []lb.Pool{pool("b", one), pool("a", two)}, service("s"),
			`s [198.51.100.1] Assigned: has 198.51.100.1 from pool "a"`},
		{"restricted before open", []lb.Pool{pool("a", one), with(pool("b", two), allocation(lb.Allocation{ByNamespace: true, Namespaces: []string{"default"}}))},
			service("s"),
			`s [198.51.100.1] Assigned: has 198.51.100.1 from pool "b"`},
		{"priority before that, 0 last", []lb.Pool{
			with(pool("a", one), allocation(lb.Allocation{ByNamespace: true, Namespaces: []string{"default"}})),
			with(pool("b", two), allocation(lb.Allocation{Priority: 20})),
			with(pool("c", three), allocation(lb.Allocation{Priority: 10}))}, service("s"),
			`s [203.0.113.1] Assigned: has 203.0.113.1 from pool "c"`},
		{"the next when one is full", []lb.Pool{pool("a"), pool("b", "2001:db8::1"), pool("c", two)}, service("s"),
			`s [198.51.100.1] Assigned: has 198.51.100.1 from pool "c"`},
		{"namespace by selector", []lb.Pool{with(pool("a", one), allocation(lb.Allocation{ByNamespace: true, NamespaceSelectors: []lb.Selector{red}}))}, service("s"),
			`s [192.0.2.1] Assigned: has 192.0.2.1 from pool "a"`},
		{"namespace unknown as yet: no NotIn matches it", []lb.Pool{with(pool("a", one),
			allocation(lb.Allocation{ByNamespace: true, NamespaceSelectors: []lb.Selector{notRed}}))}, service("s", elsewhere),
			`s [] NoPool: namespace "elsewhere" is not known yet, and pools select namespaces by their labels`},
		{"and no other pool gives it an address for good", []lb.Pool{selecting, pool("b", two)}, service("s", elsewhere),
			`s [] NoPool: namespace "elsewhere" is not known yet, and pools select namespaces by their labels`},
		{"nor in place of the one it had", []lb.Pool{selecting, pool("b", two)}, service("s", elsewhere, recalling(one, "a")),
			`s [] NoPool: namespace "elsewhere" is not known yet, and pools select namespaces by their labels`},
		{"what it has it keeps, with renew too", []lb.Pool{selecting, pool("b", two)}, service("s", elsewhere, holding(one), renewing),
			`s [192.0.2.1] AddressKept: keeps 192.0.2.1 from pool "a" until another can be had: namespace "elsewhere" is not known yet, and pools select ` +
				`namespaces by their labels`},
		{"what it asks for by value, no other pool could give", []lb.Pool{selecting, pool("b", two)}, service("s", elsewhere, asking(two)),
			`s [198.51.100.1] Assigned: has 198.51.100.1 from pool "b"`},
		{"without selectors the name is enough", []lb.Pool{with(pool("a", one), allocation(lb.Allocation{ByNamespace: true, Namespaces: []string{"elsewhere"}})),
			pool("b", two)}, service("s", elsewhere),
			`s [192.0.2.1] Assigned: has 192.0.2.1 from pool "a"`},
		{"a selector that matches nothing restricts to nothing", []lb.Pool{with(pool("a", one),
			allocation(lb.Allocation{ByNamespace: true, NamespaceSelectors: []lb.Selector{nothing}}))}, service("s"),
			`s [] NoPool: no IPv4 address: pool "a" does not serve the Service's namespace`},
		{"nor may it be asked for", []lb.Pool{with(pool("a", one), allocation(lb.Allocation{ByNamespace: true}))}, service("s", asking(one)),
			`s [] PoolNotAllowed: asks for 192.0.2.1, but pool "a" does not serve the Service's namespace`},
		{"service selector", []lb.Pool{with(pool("a", one), allocation(lb.Allocation{ServiceSelectors: []lb.Selector{red}})), pool("b", two)}, service("s", labelled),
			`s [192.0.2.1] Assigned: has 192.0.2.1 from pool "a"`},
		{"service selector of others", []lb.Pool{with(pool("a", one), allocation(lb.Allocation{ServiceSelectors: []lb.Selector{red}}))}, service("s"),
			`s [] NoPool: no IPv4 address: pool "a" does not serve the Service's labels`},
		{"both must allow", []lb.Pool{with(pool("a", one), allocation(lb.Allocation{ByNamespace: true, Namespaces: []string{"x"},
			ServiceSelectors: []lb.Selector{red}}))}, service("s", labelled),
			`s [] NoPool: no IPv4 address: pool "a" does not serve the Service's namespace`},
		{"every pool says why", []lb.Pool{pool("full"), with(pool("by-hand", one), manual), with(pool("old", two), deleting), pool("six", "2001:db8::1")},
			service("s"),
			`s [] NoFamily: no IPv4 address: pool "full" has no IPv4 range; pool "six" has no IPv4 range; pool "by-hand" has autoAssign off; pool "old" is being ` +
				`deleted`},

		{"asked for pool", []lb.Pool{pool("a", one), with(pool("b", two), manual)}, service("s", askingPool("b")),
			`s [198.51.100.1] Assigned: has 198.51.100.1 from pool "b"`},
		{"asked for pool is unknown", []lb.Pool{pool("a", one)}, service("s", askingPool("x")),
			`s [] UnknownPool: asks for pool "x", which does not exist`},
		{"asked for pool refuses", []lb.Pool{with(pool("a", one), allocation(lb.Allocation{ByNamespace: true})), pool("b", two)}, service("s", askingPool("a")),
			`s [] PoolNotAllowed: asks for a pool, but pool "a" does not serve the Service's namespace`},
		{"asked for pool is of another family", []lb.Pool{pool("a", "2001:db8::1"), pool("b", two)}, service("s", askingPool("a")),
			`s [] NoFamily: no IPv4 address: pool "a" has no IPv4 range`},
		{"another pool held: moves", []lb.Pool{pool("a", one), pool("b", two)}, service("s", askingPool("b"), holding(one)),
			`s [198.51.100.1] Assigned: has 198.51.100.1 from pool "b"`},
		{"another pool held, the one asked for is full: stays", []lb.Pool{pool("a", one), pool("b", "2001:db8::1")}, service("s", askingPool("b"), holding(one)),
			`s [192.0.2.1] AddressKept: keeps 192.0.2.1 from pool "a" until another can be had: no IPv4 address: pool "b" has no IPv4 range`},
		{"the range went to another pool: stays", []lb.Pool{pool("a", one), pool("b", two)}, service("s", askingPool("b"), holding(one), from(one, "b")),
			`s [192.0.2.1] Assigned: has 192.0.2.1 from pool "a"`},
		{"cut from the pool asked for: stays", []lb.Pool{pool("b", two)}, service("s", askingPool("b"), holding(one), from(one, "b")),
			`s [192.0.2.1] Assigned: has 192.0.2.1, which is in no pool any more`},

		{"asked for address", []lb.Pool{pool("a", one), with(pool("b", two), manual)}, service("s", asking(two)),
			`s [198.51.100.1] Assigned: has 198.51.100.1 from pool "b"`},
		{"asked for address is in no pool: no fallback", []lb.Pool{pool("a", one)}, service("s", asking(two)),
			`s [] AddressNotInPool: asks for 198.51.100.1, which is in none of the pools: ask for another address or add it to a pool`},
		{"and in another pool than asked for", []lb.Pool{pool("a", one), pool("b", two)}, service("s", asking(two), askingPool("a")),
			`s [] AddressNotInPool: asks for 198.51.100.1 and for pool "a", but the address is in pool "b": ask for one of the two`},
		{"of a pool on its way out", []lb.Pool{with(pool("a", one), deleting)}, service("s", asking(one)),
			`s [] PoolNotAllowed: asks for 192.0.2.1, but pool "a" is being deleted`},
		{"of another family", []lb.Pool{pool("a", "2001:db8::1")}, service("s", asking("2001:db8::1")),
			`s [] InvalidRequest: asks for 2001:db8::1, a family of which the Service has no cluster IP`},
		{"moves when asked by value", []lb.Pool{pool("a", one), pool("b", two)}, service("s", asking(two), holding(one)),
			`s [198.51.100.1] Assigned: has 198.51.100.1 from pool "b"`},
		{"keeps what it has when that cannot be", []lb.Pool{pool("a", one)}, service("s", asking(two), holding(one)),
			`s [192.0.2.1] AddressNotInPool: keeps 192.0.2.1 from pool "a"; asks for 198.51.100.1, which is in none of the pools: ask for another address or add ` +
				`it to a pool`},
		{"holds what it asks for, though no pool has it", nil, service("s", asking(two), holding(two), from(two, "b")),
			`s [198.51.100.1] Assigned: has 198.51.100.1, which is in no pool any more`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := lb.State{
				Namespaces: map[string]map[string]string{"default": {"colour": "red"}},
				Pools:      tt.pools, Services: []*lb.Service{tt.service},
			}
			if diff := cmp.Diff([]string{tt.want}, text(Assign(s))); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestFamilies(t *testing.T) {
	both := pool("both", v4, v6)
	for _, tt := range []struct {
		name    string
		pools   []lb.Pool
		service *lb.Service
		want    string
	}{
		{"both from one pool", []lb.Pool{pool("a", "198.51.100.1"), both}, service("s", dual(lb.RequireDualStack)),
			`s [192.0.2.1 2001:db8::1] Assigned: has 192.0.2.1 from pool "both" and 2001:db8::1 from pool "both"`},
		{"from two when none has both", []lb.Pool{pool("six", v6), pool("four", v4)}, service("s", dual(lb.RequireDualStack)),
			`s [192.0.2.1 2001:db8::1] Assigned: has 192.0.2.1 from pool "four" and 2001:db8::1 from pool "six"`},
		{"primary first", []lb.Pool{both}, service("s", func(s *lb.Service) {
			s.Families, s.FamilyPolicy = []lb.Family{lb.IPv6, lb.IPv4}, lb.PreferDualStack
		}), `s [2001:db8::1 192.0.2.1] Assigned: has 2001:db8::1 from pool "both" and 192.0.2.1 from pool "both"`},
		{"in the Service's order whatever the status'", []lb.Pool{both}, service("s", dual(lb.PreferDualStack), holding("2001:db8::2", "192.0.2.2")),
			`s [192.0.2.2 2001:db8::2] Assigned: has 192.0.2.2 from pool "both" and 2001:db8::2 from pool "both"`},
		{"Require takes both or none", []lb.Pool{pool("four", v4)}, service("s", dual(lb.RequireDualStack)),
			`s [] NoFamily: no IPv6 address: pool "four" has no IPv6 range`},
		{"Require keeps one that it had", []lb.Pool{pool("four", v4)}, service("s", dual(lb.RequireDualStack), holding("192.0.2.2")),
			`s [192.0.2.2] NoFamily: keeps 192.0.2.2 from pool "four"; no IPv6 address: pool "four" has no IPv6 range`},
		{"Require of a Service with one family", []lb.Pool{both}, service("s", func(s *lb.Service) { s.FamilyPolicy = lb.RequireDualStack }, holding("192.0.2.1")),
			`s [] DualStackUnmet: ipFamilyPolicy is RequireDualStack, but the Service has an IPv4 cluster IP only: choose PreferDualStack, or make the cluster ` +
				`dual-stack`},
		{"Prefer takes what there is", []lb.Pool{pool("six", v6)}, service("s", dual(lb.PreferDualStack)),
			`s [2001:db8::1] PartlyAssigned: has 2001:db8::1 from pool "six"; no IPv4 address: pool "six" has no IPv4 range`},
		{"Prefer of a Service with one family is content", []lb.Pool{both}, service("s", func(s *lb.Service) { s.FamilyPolicy = lb.PreferDualStack }),
			`s [192.0.2.1] Assigned: has 192.0.2.1 from pool "both"`},
		{"Prefer gains its second family and keeps the first", []lb.Pool{pool("a", "198.51.100.1", "2001:db8:1::1"), both},
			service("s", dual(lb.PreferDualStack), holding("192.0.2.2")),
			`s [192.0.2.2 2001:db8::1] Assigned: has 192.0.2.2 from pool "both" and 2001:db8::1 from pool "both"`},
		{"Prefer loses its second family and keeps the first", []lb.Pool{both},
			service("s", func(s *lb.Service) { s.FamilyPolicy = lb.PreferDualStack }, holding("2001:db8::1", "192.0.2.2")),
			`s [192.0.2.2] Assigned: has 192.0.2.2 from pool "both"`},
		{"one asked for by value, the other beside it", []lb.Pool{pool("a", "198.51.100.1", "2001:db8:1::1"), both},
			service("s", dual(lb.PreferDualStack), asking("2001:db8::2")),
			`s [192.0.2.1 2001:db8::2] Assigned: has 192.0.2.1 from pool "both" and 2001:db8::2 from pool "both"`},
		{"Prefer does not fall back from a request", []lb.Pool{both}, service("s", dual(lb.PreferDualStack), asking("2001:db8::9")),
			`s [] AddressNotInPool: asks for 2001:db8::9, which is in none of the pools: ask for another address or add it to a pool`},
		{"nor does one that has an address already", []lb.Pool{both}, service("s", dual(lb.PreferDualStack), asking("2001:db8::9"), holding("192.0.2.2")),
			`s [192.0.2.2] AddressNotInPool: keeps 192.0.2.2 from pool "both"; asks for 2001:db8::9, which is in none of the pools: ask for another address or ` +
				`add it to a pool`},
		{"two of one family in the status: one stays", []lb.Pool{both}, service("s", holding("192.0.2.2", "192.0.2.1")),
			`s [192.0.2.2] Assigned: has 192.0.2.2 from pool "both"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff([]string{tt.want}, text(Assign(lb.State{Pools: tt.pools, Services: []*lb.Service{tt.service}}))); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// A released address is not assigned before the status shows the release: two
// statuses are two writes, and they may land in any order.
func TestReleasedAddressIsAssignedLater(t *testing.T) {
	s := lb.State{Pools: []lb.Pool{pool("p", v4)}, Services: []*lb.Service{
		service("mover", holding("192.0.2.1"), asking("192.0.2.2")),
		service("waiter"),
	}}
	first := Assign(s)
	want := []string{
		`mover [192.0.2.2] Assigned: has 192.0.2.2 from pool "p"`,
		`waiter [] PoolExhausted: no IPv4 address: pool "p" is full`,
	}
	if diff := cmp.Diff(want, text(first)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	want[1] = `waiter [192.0.2.1] Assigned: has 192.0.2.1 from pool "p"`
	if diff := cmp.Diff(want, text(Assign(applied(s, first)))); diff != "" {
		t.Errorf("second: -want +got\n%s", diff)
	}
}
