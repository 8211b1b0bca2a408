package ipam

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestChoosePool: the addresses that a Service gets, their pools and their families.
func TestChoosePool(t *testing.T) {
	red := lb.Selector{{Key: "colour", Operator: lb.In, Values: []string{"red"}}}
	notRed := lb.Selector{{Key: "colour", Operator: lb.NotIn, Values: []string{"red"}}}
	nothing := lb.Selector{{Operator: lb.In}}
	labelled := func(s *lb.Service) { s.Labels = map[string]string{"colour": "red"} }
	elsewhere := func(s *lb.Service) { s.Key.Namespace = "elsewhere" }
	renewing := func(s *lb.Service) { s.Renew = true }
	one := "192.0.2.1"
	two := "198.51.100.1"
	three := "203.0.113.1"
	both := pool("both", v4, v6)
	selecting := with(pool("a", one), allocation(lb.Allocation{ByNamespace: true, NamespaceSelectors: []lb.Selector{red}}))
	for _, tt := range []struct {
		name    string
		pools   []lb.Pool
		service *lb.Service
		want    string
	}{
		{"by name", []lb.Pool{pool("b", one), pool("a", two)}, service("s"), gets("s", two, "a")},
		{
			"restricted before open",
			[]lb.Pool{
				pool("a", one),
				with(pool("b", two), allocation(lb.Allocation{ByNamespace: true, Namespaces: []string{"default"}})),
			},
			service("s"), gets("s", two, "b"),
		},
		{"priority before that, 0 last", []lb.Pool{
			with(pool("a", one), allocation(lb.Allocation{ByNamespace: true, Namespaces: []string{"default"}})),
			with(pool("b", two), allocation(lb.Allocation{Priority: 20})),
			with(pool("c", three), allocation(lb.Allocation{Priority: 10}))}, service("s"), gets("s", three, "c")},
		{
			"the next when one is full",
			[]lb.Pool{pool("a"), pool("b", "2001:db8::1"), pool("c", two)}, service("s"), gets("s", two, "c"),
		},
		{
			"namespace by selector",
			[]lb.Pool{
				with(pool("a", one), allocation(lb.Allocation{ByNamespace: true, NamespaceSelectors: []lb.Selector{red}})),
			},
			service("s"), gets("s", one, "a"),
		},
		{"namespace unknown as yet: no NotIn matches it", []lb.Pool{with(pool("a", one),
			allocation(lb.Allocation{ByNamespace: true, NamespaceSelectors: []lb.Selector{notRed}}))}, service("s", elsewhere),
			`s [] NoPool: namespace "elsewhere" is not known yet, and pools select namespaces by their labels`},
		{"and no other pool gives it an address for good", []lb.Pool{selecting, pool("b", two)}, service("s", elsewhere),
			`s [] NoPool: namespace "elsewhere" is not known yet, and pools select namespaces by their labels`},
		{"nor in place of the one it had", []lb.Pool{selecting, pool("b", two)}, service("s", elsewhere, recalling(one, "a")),
			`s [] NoPool: namespace "elsewhere" is not known yet, and pools select namespaces by their labels`},
		{
			"what it has it keeps, with renew too",
			[]lb.Pool{selecting, pool("b", two)}, service("s", elsewhere, holding(one), renewing),
			`s [192.0.2.1] AddressKept: keeps 192.0.2.1 from pool "a" until another can be had: namespace "elsewhere" is not known yet, and pools select ` +
				`namespaces by their labels`,
		},
		{
			"what it asks for by value, no other pool could give",
			[]lb.Pool{selecting, pool("b", two)}, service("s", elsewhere, asking(two)), gets("s", two, "b"),
		},
		{
			"without selectors the name is enough",
			[]lb.Pool{with(pool("a", one), allocation(lb.Allocation{ByNamespace: true, Namespaces: []string{"elsewhere"}})),
				pool("b", two)}, service("s", elsewhere), gets("s", one, "a"),
		},
		{"a selector that matches nothing restricts to nothing", []lb.Pool{with(pool("a", one),
			allocation(lb.Allocation{ByNamespace: true, NamespaceSelectors: []lb.Selector{nothing}}))}, service("s"),
			`s [] NoPool: no IPv4 address: pool "a" does not serve the Service's namespace`},
		{
			"nor may it be asked for",
			[]lb.Pool{with(pool("a", one), allocation(lb.Allocation{ByNamespace: true}))}, service("s", asking(one)),
			`s [] PoolNotAllowed: asks for 192.0.2.1, but pool "a" does not serve the Service's namespace`,
		},
		{
			"service selector",
			[]lb.Pool{with(pool("a", one), allocation(lb.Allocation{ServiceSelectors: []lb.Selector{red}})), pool("b", two)},
			service("s", labelled), gets("s", one, "a"),
		},
		{
			"service selector of others",
			[]lb.Pool{with(pool("a", one), allocation(lb.Allocation{ServiceSelectors: []lb.Selector{red}}))},
			service("s"), `s [] NoPool: no IPv4 address: pool "a" does not serve the Service's labels`,
		},
		{
			"both must allow",
			[]lb.Pool{with(pool("a", one), allocation(lb.Allocation{ByNamespace: true, Namespaces: []string{"x"},
				ServiceSelectors: []lb.Selector{red}}))}, service("s", labelled),
			`s [] NoPool: no IPv4 address: pool "a" does not serve the Service's namespace`,
		},
		{
			"every pool says why",
			[]lb.Pool{
				pool("full"), with(pool("by-hand", one), manual), with(pool("old", two), deleting),
				pool("six", "2001:db8::1"),
			},
			service("s"),
			`s [] NoFamily: no IPv4 address: pool "full" has no IPv4 range; pool "six" has no IPv4 range; pool "by-hand" has autoAssign off; pool "old" is being ` +
				`deleted`,
		},

		{
			"asked for pool",
			[]lb.Pool{pool("a", one), with(pool("b", two), manual)}, service("s", askingPool("b")), gets("s", two, "b"),
		},
		{"asked for pool is unknown", []lb.Pool{pool("a", one)}, service("s", askingPool("x")),
			`s [] UnknownPool: asks for pool "x", which does not exist`},
		{
			"asked for pool refuses",
			[]lb.Pool{with(pool("a", one), allocation(lb.Allocation{ByNamespace: true})), pool("b", two)},
			service("s", askingPool("a")),
			`s [] PoolNotAllowed: asks for a pool, but pool "a" does not serve the Service's namespace`,
		},
		{
			"asked for pool is of another family",
			[]lb.Pool{pool("a", "2001:db8::1"), pool("b", two)}, service("s", askingPool("a")),
			`s [] NoFamily: no IPv4 address: pool "a" has no IPv4 range`,
		},
		{
			"another pool held: moves",
			[]lb.Pool{pool("a", one), pool("b", two)}, service("s", askingPool("b"), holding(one)), gets("s", two, "b"),
		},
		{
			"another pool held, the one asked for is full: stays",
			[]lb.Pool{pool("a", one), pool("b", "2001:db8::1")}, service("s", askingPool("b"), holding(one)),
			`s [192.0.2.1] AddressKept: keeps 192.0.2.1 from pool "a" until another can be had: no IPv4 address: pool "b" has no IPv4 range`,
		},
		{
			"the range went to another pool: stays",
			[]lb.Pool{pool("a", one), pool("b", two)}, service("s", askingPool("b"), holding(one), from(one, "b")),
			gets("s", one, "a"),
		},
		{
			"cut from the pool asked for: stays",
			[]lb.Pool{pool("b", two)}, service("s", askingPool("b"), holding(one), from(one, "b")),
			`s [192.0.2.1] Assigned: has 192.0.2.1, which is in no pool any more`,
		},

		{
			"asked for address",
			[]lb.Pool{pool("a", one), with(pool("b", two), manual)}, service("s", asking(two)), gets("s", two, "b"),
		},
		{"asked for address is in no pool: no fallback", []lb.Pool{pool("a", one)}, service("s", asking(two)),
			`s [] AddressNotInPool: asks for 198.51.100.1, which is in none of the pools`},
		{
			"and in another pool than asked for",
			[]lb.Pool{pool("a", one), pool("b", two)}, service("s", asking(two), askingPool("a")),
			`s [] AddressNotInPool: asks for 198.51.100.1 and for pool "a", but the address is in pool "b": ask for one of the two`,
		},
		{"of a pool on its way out", []lb.Pool{with(pool("a", one), deleting)}, service("s", asking(one)),
			`s [] PoolNotAllowed: asks for 192.0.2.1, but pool "a" is being deleted`},
		{"of another family", []lb.Pool{pool("a", "2001:db8::1")}, service("s", asking("2001:db8::1")),
			`s [] InvalidRequest: asks for 2001:db8::1, a family of which the Service has no cluster IP`},
		{
			"moves when asked by value",
			[]lb.Pool{pool("a", one), pool("b", two)}, service("s", asking(two), holding(one)), gets("s", two, "b"),
		},
		{"keeps what it has when that cannot be", []lb.Pool{pool("a", one)}, service("s", asking(two), holding(one)),
			`s [192.0.2.1] AddressNotInPool: keeps 192.0.2.1 from pool "a"; asks for 198.51.100.1, which is in none of the pools`},
		{"holds what it asks for, though no pool has it", nil, service("s", asking(two), holding(two), from(two, "b")),
			`s [198.51.100.1] Assigned: has 198.51.100.1, which is in no pool any more`},

		{"both from one pool", []lb.Pool{pool("a", "198.51.100.1"), both}, service("s", dual(lb.RequireDualStack)),
			`s [192.0.2.1 2001:db8::1] Assigned: has 192.0.2.1 from pool "both" and 2001:db8::1 from pool "both"`},
		{"from two when none has both", []lb.Pool{pool("six", v6), pool("four", v4)}, service("s", dual(lb.RequireDualStack)),
			`s [192.0.2.1 2001:db8::1] Assigned: has 192.0.2.1 from pool "four" and 2001:db8::1 from pool "six"`},
		{"primary first", []lb.Pool{both}, service("s", func(s *lb.Service) {
			s.Families, s.FamilyPolicy = []lb.Family{lb.IPv6, lb.IPv4}, lb.PreferDualStack
		}), `s [2001:db8::1 192.0.2.1] Assigned: has 2001:db8::1 from pool "both" and 192.0.2.1 from pool "both"`},
		{
			"in the Service's order whatever the status'",
			[]lb.Pool{both}, service("s", dual(lb.PreferDualStack), holding("2001:db8::2", "192.0.2.2")),
			`s [192.0.2.2 2001:db8::2] Assigned: has 192.0.2.2 from pool "both" and 2001:db8::2 from pool "both"`,
		},
		{"Require takes both or none", []lb.Pool{pool("four", v4)}, service("s", dual(lb.RequireDualStack)),
			`s [] NoFamily: no IPv6 address: pool "four" has no IPv6 range`},
		{
			"Require keeps the address that it had",
			[]lb.Pool{pool("four", v4)}, service("s", dual(lb.RequireDualStack), holding("192.0.2.2")),
			`s [192.0.2.2] NoFamily: keeps 192.0.2.2 from pool "four"; no IPv6 address: pool "four" has no IPv6 range`,
		},
		{
			"Require of a Service with one family",
			[]lb.Pool{both},
			service("s", func(s *lb.Service) { s.FamilyPolicy = lb.RequireDualStack }, holding("192.0.2.1")),
			`s [] DualStackUnmet: ipFamilyPolicy is RequireDualStack, but the Service has an IPv4 cluster IP only`,
		},
		{"Prefer takes what there is", []lb.Pool{pool("six", v6)}, service("s", dual(lb.PreferDualStack)),
			`s [2001:db8::1] PartlyAssigned: has 2001:db8::1 from pool "six"; no IPv4 address: pool "six" has no IPv4 range`},
		{
			"Prefer of a Service with one family is content",
			[]lb.Pool{both}, service("s", func(s *lb.Service) { s.FamilyPolicy = lb.PreferDualStack }),
			gets("s", one, "both"),
		},
		{"Prefer gains its second family and keeps the first", []lb.Pool{pool("a", "198.51.100.1", "2001:db8:1::1"), both},
			service("s", dual(lb.PreferDualStack), holding("192.0.2.2")),
			`s [192.0.2.2 2001:db8::1] Assigned: has 192.0.2.2 from pool "both" and 2001:db8::1 from pool "both"`},
		{"Prefer loses its second family and keeps the first", []lb.Pool{both},
			service("s", func(s *lb.Service) { s.FamilyPolicy = lb.PreferDualStack }, holding("2001:db8::1", "192.0.2.2")),
			gets("s", "192.0.2.2", "both")},
		{"one asked for by value, the other beside it", []lb.Pool{pool("a", "198.51.100.1", "2001:db8:1::1"), both},
			service("s", dual(lb.PreferDualStack), asking("2001:db8::2")),
			`s [192.0.2.1 2001:db8::2] Assigned: has 192.0.2.1 from pool "both" and 2001:db8::2 from pool "both"`},
		{
			"Prefer does not fall back from a request",
			[]lb.Pool{both}, service("s", dual(lb.PreferDualStack), asking("2001:db8::9")),
			`s [] AddressNotInPool: asks for 2001:db8::9, which is in none of the pools`,
		},
		{
			"nor does a Service that has an address already",
			[]lb.Pool{both}, service("s", dual(lb.PreferDualStack), asking("2001:db8::9"), holding("192.0.2.2")),
			`s [192.0.2.2] AddressNotInPool: keeps 192.0.2.2 from pool "both"; asks for 2001:db8::9, which is in none of the pools`,
		},
		{"two of one family in the status: one stays", []lb.Pool{both}, service("s", holding("192.0.2.2", "192.0.2.1")),
			gets("s", "192.0.2.2", "both")},
	} {
		s := lb.State{
			Namespaces: map[string]map[string]string{"default": {"colour": "red"}}, Pools: tt.pools,
			Services: []*lb.Service{tt.service},
		}
		equal(t, tt.name, []string{tt.want}, text(Assign(s)))
	}
}

func port(n uint16) lb.Port { return lb.Port{Protocol: "TCP", Port: n} }

// sharing gives a Service the common sharing key, and its ports.
func sharing(ports ...lb.Port) func(*lb.Service) {
	return func(s *lb.Service) { s.SharingKey, s.Ports = "k", ports }
}

// TestEditOfOneSharer: three Services share an address and the oldest is edited. Whatever the edit, the others stay.
func TestEditOfOneSharer(t *testing.T) {
	others := []string{shares("b", "192.0.2.1", "p"), shares("c", "192.0.2.1", "p")}
	for _, tt := range []struct {
		name string
		edit func(*lb.Service)
		want string
	}{
		{
			"a port of another", func(s *lb.Service) { s.Ports = []lb.Port{port(80), port(443)} },
			"a [] PortClash: had 192.0.2.1 before, where Service default/b holds port TCP/443: " +
				"to take another, remove the annotation holdfast.dev/assigned",
		},
		{
			"another traffic policy", func(s *lb.Service) { s.Local, s.Backend = true, "app=a" },
			"a [] NotShareable: had 192.0.2.1 before, which Service default/b holds with another externalTrafficPolicy: " +
				"Services that share have the same: to take another, remove the annotation holdfast.dev/assigned",
		},
		{"another key", func(s *lb.Service) { s.SharingKey = "l" }, gets("a", "192.0.2.2", "p")},
		{"a free port", func(s *lb.Service) { s.Ports = []lb.Port{port(80), port(8080)} }, shares("a", "192.0.2.1", "p")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			state := lb.State{Pools: []lb.Pool{pool("p", v4)},
				Services: []*lb.Service{
					service("a", sharing(port(80))), service("b", sharing(port(443))), service("c", sharing(port(444))),
				}}
			state = applied(state, Assign(state))
			before := *state.Services[0]
			tt.edit(state.Services[0])
			for _, run := range []string{"at once", "when it is written"} {
				r := Assign(state)
				if diff := cmp.Diff(append([]string{tt.want}, others...), text(r)); diff != "" {
					t.Fatalf("%s (-want +got):\n%s", run, diff)
				}
				state = applied(state, r)
			}
			if len(state.Services[0].Addresses) > 0 {
				return
			}
			state.Services[0].Ports, state.Services[0].Local = before.Ports, before.Local
			got := Assign(state).Assignments[0].Addresses
			undone := !cmp.Equal(text(Assign(state))[1:], others) || len(got) != 1 || got[0] != before.Addresses[0]
			if undone {
				t.Errorf("the edit was undone, and the Service has %v", got)
			}
		})
	}
}

// TestReuseDelayOfTheClashing: a Service gave up its address in a clash, and the other Service is deleted. The first
// waits until reuseDelay is over. So does a restored Service whose address another Service released.
func TestReuseDelayOfTheClashing(t *testing.T) {
	p := with(pool("p", v4), func(p *lb.Pool) { p.ReuseDelay = 10 * time.Minute })
	state := lb.State{Now: time.Unix(0, 0), Pools: []lb.Pool{p}, Services: []*lb.Service{
		service("a", sharing(port(80))), service("b", sharing(port(443))),
	}}
	state = applied(state, Assign(state))
	state.Services[0].Ports = []lb.Port{port(443)}
	state = applied(state, Assign(state))

	state.Now = state.Now.Add(time.Minute)
	b := state.Services[1]
	state.Services, state.Leaving = state.Services[:1], []lb.Leaving{{Key: b.Key, Addresses: b.Addresses}}
	state = applied(state, Assign(state))
	restored := service("restored", recalling("192.0.2.1", "p"))
	const waits = " [] Quarantined: had 192.0.2.1 before, which default/b gave back and which the pool's reuseDelay " +
		"keeps until 1970-01-01T00:11:00Z: to take another, remove the annotation holdfast.dev/assigned"
	for _, svc := range []*lb.Service{state.Services[0], restored} {
		state.Services = []*lb.Service{svc}
		r := Assign(state)
		equal(t, "result", []string{svc.Key.Name + waits}, text(r))
		after := applied(state, r)
		after.Now = r.Recheck
		equal(t, "when reuseDelay is over",
			[]string{svc.Key.Name + ` [192.0.2.1] Assigned: has 192.0.2.1 from pool "p"`}, text(Assign(after)))
	}
}

// TestDigest: the digest depends on what checkCompatible compares and on the ports, and on nothing else.
func TestDigest(t *testing.T) {
	of := func(changes ...func(*lb.Service)) string {
		svc := service("a", changes...)
		s := newSubject(svc)
		return s.digest()
	}
	base := func(s *lb.Service) {
		s.SharingKey, s.Backend, s.Ports = "k", "app=a", []lb.Port{port(80), {Protocol: "UDP", Port: 80}, port(443)}
	}
	local := func(s *lb.Service) { s.Local = true }
	backend := func(s *lb.Service) { s.Backend = "app=b" }
	if base := of(base); len(base) < 22 {
		t.Errorf("%s has less than 128 bits: whoever edits a Service finds two texts with one digest", base)
	}
	for _, tt := range []struct {
		name string
		a, b string
		same bool
	}{
		{
			"order of ports",
			of(base),
			of(base, func(s *lb.Service) { s.Ports = []lb.Port{port(443), {Protocol: "UDP", Port: 80}, port(80)} }),
			true,
		},
		{"labels", of(base), of(base, func(s *lb.Service) { s.Labels = map[string]string{"app": "a"} }), true},
		{"selector of Cluster", of(base), of(base, backend), true},
		{"selector of Local", of(base, local), of(base, local, backend), false},
		{"traffic policy", of(base), of(base, local), false},
		{"internal", of(base), of(base, func(s *lb.Service) { s.Internal = true }), false},
		{"key", of(base), of(base, func(s *lb.Service) { s.SharingKey = "l" }), false},
		{"one port less", of(base), of(base, func(s *lb.Service) { s.Ports = s.Ports[:2] }), false},
		{"protocol", of(base), of(base, func(s *lb.Service) { s.Ports[2].Protocol = "SCTP" }), false},
	} {
		if (tt.a == tt.b) != tt.same {
			t.Errorf("%s: %s and %s", tt.name, tt.a, tt.b)
		}
	}
}

// beyond leaves a Service only its first port, as the bound of its namespace may do without an edit of the Service.
func beyond(s *lb.Service) {
	s.Ports, s.Unserved = s.Ports[:1:1], s.Ports[1:]
	s.Problem = &lb.Problem{Reason: lb.TooManyPorts, Message: "too many"}
}

// within serves all ports again.
func within(s *lb.Service) {
	s.Ports, s.Unserved, s.Problem = slices.Concat(s.Ports, s.Unserved), nil, nil
}

// TestUnservedPorts: a Service loses no address because some of its ports are not served for a while. Services that
// share the address and take these ports meanwhile give it up, and no other Service joins.
func TestUnservedPorts(t *testing.T) {
	for _, age := range []int{1, 3} {
		state := lb.State{Pools: []lb.Pool{pool("p", "192.0.2.1-192.0.2.3")}, Services: []*lb.Service{
			service("a", created(2), sharing(port(80), port(443))), service("b", created(age), sharing(port(8080))),
		}}
		decide := func(when string, want ...string) {
			t.Helper()
			for range 2 {
				r := Assign(state)
				var got []string
				for _, a := range r.Assignments {
					got = append(got, a.Key.Name+" "+a.Addresses[0].String())
				}
				equal(t, fmt.Sprintf("b of age %d, %s", age, when), want, got)
				state = applied(state, r)
			}
		}
		decide("at first", "a 192.0.2.1", "b 192.0.2.1")
		beyond(state.Services[0])
		decide("beyond the bound", "a 192.0.2.1", "b 192.0.2.1")
		state.Services = append(state.Services, service("c", created(4), sharing(port(443))))
		decide("c comes", "a 192.0.2.1", "b 192.0.2.1", "c 192.0.2.2")
		state.Services = state.Services[:2]
		state.Services[0].Unserved = append(slices.Clone(state.Services[0].Unserved), port(8080))
		decide("a declares a port of b", "a 192.0.2.1", "b 192.0.2.1")
		claimed := state
		claimed.Services = slices.Clone(state.Services)
		claimed.Services[0] = new(*claimed.Services[0])
		within(claimed.Services[0])
		if r := Assign(claimed); len(r.Assignments[0].Addresses) > 0 || len(r.Assignments[1].Addresses) != 1 {
			t.Errorf("b of age %d, the port of b is served too: %q", age, text(r))
		}
		state.Services[0].Unserved = state.Services[0].Unserved[:1]
		state.Services[1].Ports = []lb.Port{port(443)}
		decide("b takes a port of a", "a 192.0.2.1", "b 192.0.2.1")
		within(state.Services[0])
		r := Assign(state)
		a, b := r.Assignments[0], r.Assignments[1]
		if len(a.Addresses) != 1 || len(b.Addresses) > 0 || b.Reason != lb.PortClash {
			t.Errorf("b of age %d, within the bound again: %q", age, text(r))
		}
	}
}

// TestAppendQuoted checks that names are quoted as strconv quotes them: records have digests of such texts.
func TestAppendQuoted(t *testing.T) {
	for _, name := range []string{"", "lan", "key a b", `a"b`, `a\b`, "a\nb", "ü", "a\x7f", "a\xffb", "~ !"} {
		if got := string(appendQuoted([]byte("x"), name)); got != "x"+strconv.Quote(name) {
			t.Errorf("%q is quoted as %s", name, got)
		}
	}
}
