package ipam

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// The helpers build pools and Services from the properties that matter in each case.
func pool(name string, ranges ...string) lb.Pool {
	p := lb.Pool{Name: name, AutoAssign: true}
	for _, r := range ranges {
		from, to, ok := strings.Cut(r, "-")
		if !ok {
			to = from
		}
		p.Ranges = append(p.Ranges, lb.Range{From: netip.MustParseAddr(from), To: netip.MustParseAddr(to)})
	}
	return p
}

func with[T any](v T, changes ...func(*T)) T {
	for _, change := range changes {
		change(&v)
	}
	return v
}

func service(name string, changes ...func(*lb.Service)) *lb.Service {
	return new(with(lb.Service{
		Key:          lb.Key{Namespace: "default", Name: name},
		Families:     []lb.Family{lb.IPv4},
		FamilyPolicy: lb.SingleStack,
	}, changes...))
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func holding(texts ...string) func(*lb.Service) {
	return func(s *lb.Service) { s.Addresses = addrs(texts...) }
}

func asking(texts ...string) func(*lb.Service) {
	return func(s *lb.Service) { s.RequestedAddresses = addrs(texts...) }
}

func from(address, pool string) func(*lb.Service) {
	return func(s *lb.Service) { s.Record = lb.Origins{{Address: netip.MustParseAddr(address), Pool: pool}} }
}

// recalling adds the addresses that an annotation recalls.
func recalling(address, pool string) func(*lb.Service) {
	return func(s *lb.Service) { s.Recall = lb.Origins{{Address: netip.MustParseAddr(address), Pool: pool}} }
}

func askingPool(name string) func(*lb.Service) {
	return func(s *lb.Service) { s.RequestedPool = name }
}

func dual(policy lb.FamilyPolicy) func(*lb.Service) {
	return func(s *lb.Service) { s.Families, s.FamilyPolicy = []lb.Family{lb.IPv4, lb.IPv6}, policy }
}

func only(family lb.Family) func(*lb.Service) {
	return func(s *lb.Service) { s.Families = []lb.Family{family} }
}

func created(second int) func(*lb.Service) {
	return func(s *lb.Service) { s.Created = time.Unix(int64(second), 0) }
}

func allocation(a lb.Allocation) func(*lb.Pool) {
	return func(p *lb.Pool) { p.Allocation = &a }
}

func manual(p *lb.Pool)   { p.AutoAssign = false }
func deleting(p *lb.Pool) { p.Deleting = true }
func listed(address string) func(*lb.Pool) {
	a := netip.MustParseAddr(address)
	return func(p *lb.Pool) { p.Withheld = withheld(lb.Range{From: a, To: a}) }
}

// withheld adds ranges that belong to a node.
func withheld(ranges ...lb.Range) lb.Index[string] {
	return lb.IndexOf([]string{`node "w1"`}, func(string) []lb.Range { return ranges })
}

func avoiding(p *lb.Pool) { p.AvoidBuggyIPs = true }

// text formats assignments for a human reader.
func text(r Result) []string {
	var out []string
	for _, a := range r.Assignments {
		out = append(out, fmt.Sprintf("%s %v %s: %s", a.Key.Name, a.Addresses, a.Reason, a.Message))
	}
	return out
}

// gets is the text of an assignment of one address.
func gets(service, address, pool string) string {
	return fmt.Sprintf("%s [%s] Assigned: has %[2]s from pool %q", service, address, pool)
}

// shares is the text of an assignment of an address that others with the sharing key have too.
func shares(service, address, pool string) string {
	return gets(service, address, pool) + "; its sharing key shares " + address
}

// decided fails the test if a decision has other addresses, or another reason unless that is "".
func decided(t testing.TB, what string, a *Assignment, reason lb.Reason, addresses ...string) {
	t.Helper()
	if !slices.Equal(a.Addresses, addrs(addresses...)) || reason != "" && a.Reason != reason {
		t.Errorf("%s: %v, %s: %s, want %v, %s", what, a.Addresses, a.Reason, a.Message, addresses, reason)
	}
}

// equal reports the difference between two values.
func equal(t testing.TB, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("%s: -want +got\n%s", what, diff)
	}
}

const (
	v4 = "192.0.2.1-192.0.2.2"
	v6 = "2001:db8::1-2001:db8::2"
)

func TestAssign(t *testing.T) {
	broken := &lb.Problem{Reason: lb.InvalidRequest, Message: "annotation is garbage"}
	p, withNode := []lb.Pool{pool("p", v4)}, []lb.Pool{with(pool("p", v4), listed("192.0.2.1"))}
	for _, tt := range []struct {
		name     string
		pools    []lb.Pool
		services []*lb.Service
		want     []string
	}{
		{"lowest first, older first", p, []*lb.Service{service("a", created(2)), service("b", created(1))},
			[]string{gets("a", "192.0.2.2", "p"), gets("b", "192.0.2.1", "p")}},
		{"of one second, by key", []lb.Pool{pool("p", "192.0.2.1")},
			[]*lb.Service{service("a"), service("b")},
			[]string{gets("a", "192.0.2.1", "p"), `b [] PoolExhausted: no IPv4 address: pool "p" is full`}},
		{"what is held is reserved before anything is given", p,
			[]*lb.Service{service("a", created(1)), service("b", created(2), holding("192.0.2.1"))},
			[]string{gets("a", "192.0.2.2", "p"), gets("b", "192.0.2.1", "p")}},
		{"held twice: the older keeps", p,
			[]*lb.Service{service("a", created(2), holding("192.0.2.2")), service("b", created(1), holding("192.0.2.2"))},
			[]string{gets("a", "192.0.2.1", "p"), gets("b", "192.0.2.2", "p")}},
		{"cut from its pool: kept", p, []*lb.Service{service("a", holding("198.51.100.7"), from("198.51.100.7", "p"))},
			[]string{`a [198.51.100.7] Assigned: has 198.51.100.7, which is in no pool any more`}},
		{"what a Node lists is not given", withNode,
			[]*lb.Service{service("a"), service("b", asking("192.0.2.1")), service("c", recalling("192.0.2.1", "p"))},
			[]string{gets("a", "192.0.2.2", "p"),
				`b [] PoolNotAllowed: asks for 192.0.2.1, which belongs to node "w1"`,
				`c [] PoolExhausted: no IPv4 address: pool "p" is full`}},
		{"what a Node lists is kept", withNode, []*lb.Service{service("a", holding("192.0.2.1"))},
			[]string{
				`a [192.0.2.1] AddressKept: keeps 192.0.2.1 from pool "p", although 192.0.2.1 belongs to node "w1": to move, set ` +
					`holdfast.dev/renew`,
			}},
		{
			"and left when asked to",
			withNode, []*lb.Service{service("a", holding("192.0.2.1"), func(s *lb.Service) { s.Renew = true })},
			[]string{gets("a", "192.0.2.2", "p")},
		},
		{"no pools at all: kept", nil,
			[]*lb.Service{service("a", holding("198.51.100.7"), from("198.51.100.7", "p")), service("b")},
			[]string{`a [198.51.100.7] Assigned: has 198.51.100.7, which is in no pool any more`,
				`b [] NoPool: there is no IPAddressPool`}},
		{"headless", p, []*lb.Service{service("a", func(s *lb.Service) { s.Families = nil }, holding("192.0.2.1"))},
			[]string{
				`a [] NoClusterIP: the Service has no cluster IP, so that nothing could be delivered: a headless Service cannot be served`,
			}},
		{"unreadable request: nothing new, what is held stays", p,
			[]*lb.Service{
				service("a", func(s *lb.Service) { s.Problem = broken }),
				service("b", func(s *lb.Service) { s.Problem = broken }, holding("192.0.2.1"))},
			[]string{`a [] InvalidRequest: annotation is garbage`,
				`b [192.0.2.1] InvalidRequest: keeps 192.0.2.1 from pool "p"; annotation is garbage`}},
		{"buggy addresses are left out", []lb.Pool{with(pool("p", "192.0.2.255-192.0.3.1"), avoiding)},
			[]*lb.Service{service("a"), service("b"), service("c", asking("192.0.3.0"))},
			[]string{gets("a", "192.0.3.1", "p"),
				`b [] PoolExhausted: no IPv4 address: pool "p" is full`,
				`c [] PoolNotAllowed: asks for 192.0.3.0, but pool "p" has avoidBuggyIPs on`}},
		{"to the last address there is", []lb.Pool{pool("p", "255.255.255.255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")},
			[]*lb.Service{service("a", dual(lb.RequireDualStack)), service("b")},
			[]string{
				`a [255.255.255.255 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff] Assigned: has 255.255.255.255 from pool "p" and ` +
					`ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff from pool "p"`,
				`b [] PoolExhausted: no IPv4 address: pool "p" is full`,
			}},
	} {
		got := text(Assign(lb.State{Pools: tt.pools, Services: tt.services}))
		equal(t, tt.name, tt.want, got)
	}
}

// TestForeignLast: a pool assigns the addresses that foreign machines claim last, but does assign them: a false report
// must not exhaust a pool.
func TestForeignLast(t *testing.T) {
	state := lb.State{Pools: []lb.Pool{pool("p", "192.0.2.0-192.0.2.3", "2001:db8::-2001:db8::2")}, Now: time.Unix(1e9, 0),
		Foreign: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::")}}
	for i, want := range []string{
		"[192.0.2.0 2001:db8::1]", "[192.0.2.2 2001:db8::2]", "[192.0.2.3 2001:db8::]", "[192.0.2.1]", "[]",
	} {
		s := service(fmt.Sprint("s", i), created(i), dual(lb.PreferDualStack))
		state.Services = append(slices.Clone(state.Services), s)
		got := Assign(state).Assignments[i]
		if fmt.Sprint(got.Addresses) != want {
			t.Errorf("%s has %v, want %s", s.Key, got.Addresses, want)
		}
		holds := *s
		holds.Addresses, holds.Record = got.Addresses, got.Record
		state.Services[i] = &holds
	}
	asks := service("asks", created(1), asking("192.0.2.1"))
	r := Assign(lb.State{Pools: state.Pools, Foreign: state.Foreign, Services: []*lb.Service{asks}})
	if len(r.Assignments[0].Addresses) != 1 {
		t.Errorf("asked for it: %s", r.Assignments[0].Message)
	}
}

// TestAssignClaims: an address that an object may have got is assigned to no other object, and to this one again. If
// two objects may have got it, both keep it if they may share it.
func TestAssignClaims(t *testing.T) {
	claim := func(name string, floating bool, addresses ...string) lb.Claim {
		return lb.Claim{Key: lb.Key{Namespace: "default", Name: name}, FloatingIP: floating, Addresses: addrs(addresses...)}
	}
	s := lb.State{
		Pools:    []lb.Pool{pool("p", "192.0.2.1-192.0.2.4")},
		Services: []*lb.Service{service("a"), service("b"), service("c", asking("192.0.2.2")), service("f")},
		Claims: []lb.Claim{
			claim("f", true, "192.0.2.3"), claim("b", false, "192.0.2.2", "192.0.2.4"),
			claim("gone", false, "192.0.2.1"),
		},
		FloatingIPs: []lb.FloatingIP{{Key: lb.Key{Namespace: "default", Name: "f"}, Families: []lb.Family{lb.IPv4}}},
	}
	want := []string{
		`a [] PoolExhausted: no IPv4 address: pool "p" is full`,
		gets("b", "192.0.2.2", "p"),
		`c [] AddressInUse: asks for 192.0.2.2, which Service default/b holds`,
		`f [] PoolExhausted: no IPv4 address: pool "p" is full`,
	}
	r := Assign(s)
	equal(t, "result", want, text(r))
	if got := r.FloatingIPs[0].Addresses; len(got) != 1 || got[0].String() != "192.0.2.3" {
		t.Errorf("the FloatingIP has %v", got)
	}
	if u := r.Pools[0]; u.IPv4.Assigned != 2 || u.IPv4.Available != 0 {
		t.Errorf("%+v", u)
	}
	s.Services = []*lb.Service{service("a", sharing(port(80))), service("b", sharing(port(443)))}
	s.Claims = []lb.Claim{claim("a", false, "192.0.2.2"), claim("b", false, "192.0.2.2")}
	got := Assign(s).Assignments
	if got[0].Addresses[0].String() != "192.0.2.2" || got[1].Addresses[0].String() != "192.0.2.2" {
		t.Errorf("two that share have %v and %v", got[0].Addresses, got[1].Addresses)
	}
}

func TestUsage(t *testing.T) {
	kept := []lb.Retention{
		{
			Address: netip.MustParseAddr("198.51.100.7"), Holder: lb.Key{Namespace: "default", Name: "a"},
			Since: time.Unix(7, 0),
		},
	}
	for _, tt := range []struct {
		name     string
		pool     lb.Pool
		services []*lb.Service
		want     Usage
	}{
		{"empty", pool("p"), nil, Usage{}},
		{"several ranges, both families", pool("p", "192.0.2.0-192.0.2.9", "192.0.2.20", "2001:db8::-2001:db8::f"),
			[]*lb.Service{service("a", dual(lb.RequireDualStack)), service("b", holding("203.0.113.1"))},
			Usage{IPv4: Counts{Assigned: 1, Available: 10}, IPv6: Counts{Assigned: 1, Available: 15}}},
		{"buggy ones cannot be given, yet may be held", with(pool("p", "192.0.2.0-192.0.3.255"), avoiding),
			[]*lb.Service{service("a", holding("192.0.2.255")), service("b")},
			Usage{IPv4: Counts{Assigned: 2, Available: 507}}},
		{"the bound of counts", pool("p", "2001:db8::-2001:db8:0:1::"), nil, Usage{IPv6: Counts{Available: maxCounted - 1}}},
		{"exact below", pool("p", "2001:db8::-2001:db8::3fff:ffff:ffff:fffe"), []*lb.Service{service("a", only(lb.IPv6))},
			Usage{IPv6: Counts{Assigned: 1, Available: maxCounted - 2}}},
		{
			"across 64 bits",
			pool("p", "2001:db8::ffff:ffff:ffff:ffff-2001:db8:0:1::3"), nil, Usage{IPv6: Counts{Available: 5}},
		},
		{"all of IPv6 twice", pool("p", "::1-7fff::", "8000::-ffff::"), nil, Usage{IPv6: Counts{Available: maxCounted}}},
		{"retained since it was cut", with(pool("p", v4), func(p *lb.Pool) { p.Retained = kept }),
			[]*lb.Service{service("a", holding("198.51.100.7"), from("198.51.100.7", "p"))},
			Usage{IPv4: Counts{Available: 2}, Retained: kept, RetainedCount: 1}},
		{"deleting", with(pool("p", v4), deleting),
			[]*lb.Service{service("a", holding("192.0.2.1"))},
			Usage{IPv4: Counts{Assigned: 1}, Holders: []lb.Key{{Namespace: "default", Name: "a"}}}},
	} {
		tt.want.Pool = "p"
		got := Assign(lb.State{Pools: []lb.Pool{tt.pool}, Services: tt.services}).Pools
		equal(t, tt.name, []Usage{tt.want}, got)
	}
}

// A formula counts the buggy addresses; this compares it with counting one by one.
func TestBuggyCount(t *testing.T) {
	first := netip.MustParseAddr("10.0.0.0")
	s := supply{Pool: &lb.Pool{AvoidBuggyIPs: true}}
	all := []netip.Addr{first}
	for len(all) < 600 {
		all = append(all, all[len(all)-1].Next())
	}
	for i := 0; i < len(all); i += 7 {
		for j := i; j < len(all); j += 3 {
			var want int64
			for _, addr := range all[i : j+1] {
				if s.avoids(addr) {
					want++
				}
			}
			if got := countBuggy(lb.Range{From: all[i], To: all[j]}); got != want {
				t.Fatalf("%s-%s holds %d, want %d", all[i], all[j], got, want)
			}
		}
	}
	if !slices.ContainsFunc(all, s.avoids) {
		t.Error("no address is avoided")
	}
}

// TestAssignmentEqual checks that each field makes a difference.
func TestAssignmentEqual(t *testing.T) {
	one := &Assignment{}
	if !one.Equal(&Assignment{}) {
		t.Error("equal assignments differ")
	}
	for i := range reflect.TypeFor[Assignment]().NumField() {
		other := &Assignment{}
		field := reflect.ValueOf(other).Elem().Field(i)
		switch field.Kind() {
		case reflect.Slice:
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
		case reflect.String:
			field.SetString("x")
		default:
			field.Set(reflect.ValueOf(lb.Key{Name: "x"}))
		}
		if one.Equal(other) {
			t.Errorf("%s makes no difference", reflect.TypeFor[Assignment]().Field(i).Name)
		}
	}
}
