package lb

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// TestGroups checks over random histories that groups are the Services that addresses connect, that each address has
// a single group, and that a group with the same members stays the same.
func TestGroups(t *testing.T) {
	kept := 0
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		var groups Groups
		var services []*Service
		var leaving []Leaving
		for range 100 {
			services, leaving = changed(random, services, leaving)
			before := slices.Clone(groups.All)
			differs := groups.Form(services, leaving)
			if differs == slices.Equal(before, groups.All) {
				t.Fatalf("seed %d: the groups differ: %v", seed, differs)
			}
			check(t, &groups, services, leaving)
			for _, g := range groups.All {
				isSame := func(o *Group) bool {
					return slices.Equal(o.Services, g.Services) && slices.Equal(o.Leaving, g.Leaving)
				}
				i := slices.IndexFunc(before, isSame)
				if i >= 0 && before[i] != g {
					t.Fatalf("seed %d: a group with the same members is another one", seed)
				}
				if i >= 0 {
					kept++
				}
			}
		}
	}
	if kept < 10_000 {
		t.Errorf("%d groups stayed, which are too few to show anything", kept)
	}
}

// TestAgreeing checks that a group agrees only if all of its Services that stay do.
func TestAgreeing(t *testing.T) {
	address := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, n}) }
	service := func(name string, addresses ...byte) *Service {
		s := &Service{Key: Key{Name: name}}
		for _, n := range addresses {
			s.Addresses = append(s.Addresses, address(n))
		}
		return s
	}
	services := []*Service{service("a", 1), service("b", 1, 2), service("no", 2, 3), service("z", 4), service("zz")}
	var groups Groups
	groups.Form(services, []Leaving{{Key: Key{Name: "no"}, Served: service("no", 4)}})
	agree := groups.Agreeing(func(s *Service) bool { return s.Key.Name != "no" })
	for n, want := range map[byte]bool{1: false, 2: false, 3: false, 4: true, 5: true} {
		if got := agree([]netip.Addr{address(n)}); got != want {
			t.Errorf("the Services of address %d agree: %t", n, got)
		}
	}
	if !agree(nil) {
		t.Error("a Service without addresses disagrees with itself")
	}
}

// changed replaces or removes a Service, or lets one leave.
func changed(random *rand.Rand, services []*Service, leaving []Leaving) ([]*Service, []Leaving) {
	services, leaving = slices.Clone(services), slices.Clone(leaving)
	s := &Service{Key: Key{Name: fmt.Sprintf("%02d", random.IntN(30))}}
	for range random.IntN(3) {
		s.Addresses = append(s.Addresses, netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(40))}))
	}
	var old []netip.Addr
	services = slices.DeleteFunc(services, func(o *Service) bool {
		if o.Key == s.Key {
			old = o.Addresses
		}
		return o.Key == s.Key
	})
	leaving = slices.DeleteFunc(leaving, func(l Leaving) bool { return l.Key == s.Key })
	switch random.IntN(8) {
	case 2, 3: // only its endpoints differ
		s.Addresses = old
		if old != nil {
			services = append(services, s)
		}
	case 0:
		l := Leaving{Key: s.Key}
		if len(s.Addresses) > 0 {
			l.Served = s
		}
		leaving = append(leaving, l)
	case 1:
	default:
		services = append(services, s)
	}
	slices.SortFunc(services, func(a, b *Service) int { return a.Key.Compare(b.Key) })
	slices.SortFunc(leaving, func(a, b Leaving) int { return a.Key.Compare(b.Key) })
	return services, leaving
}

// check compares groups with the Services that addresses connect, which it finds in another way.
func check(t *testing.T, groups *Groups, services []*Service, leaving []Leaving) {
	t.Helper()
	all := slices.Clone(services)
	for i := range leaving {
		if leaving[i].Served != nil {
			all = append(all, leaving[i].Served)
		}
	}
	name := map[Key]string{}
	for _, s := range all {
		name[s.Key] = s.Key.Name
	}
	for range all { // spread the lowest name until nothing changes
		for _, a := range all {
			for _, b := range all {
				sharesAddress := slices.ContainsFunc(a.Addresses, func(x netip.Addr) bool {
					return slices.Contains(b.Addresses, x)
				})
				if sharesAddress {
					name[a.Key] = min(name[a.Key], name[b.Key])
				}
			}
		}
	}

	names := map[string]*Group{}
	count := 0
	for _, g := range groups.All {
		checkHolders(t, g)
		for _, s := range slices.Concat(g.Services, g.Leaving) {
			count++
			other := names[name[s.Key]]
			if other != nil && other != g {
				t.Fatalf("%v is in another group than %s", s.Key, name[s.Key])
			}
			names[name[s.Key]] = g
			for _, a := range s.Addresses {
				if groups.At(a) != g || !g.Has(a) {
					t.Fatalf("%s has another group than %v", a, s.Key)
				}
			}
		}
	}
	if len(names) != len(groups.All) || count != len(all) {
		t.Fatalf("%d groups of %d Services, want %d of %d", len(groups.All), count, len(names), len(all))
	}
	order := func(a, b *Group) int {
		x, xStays := a.first()
		y, yStays := b.first()
		switch {
		case xStays && !yStays:
			return -1
		case yStays && !xStays:
			return 1
		}
		return x.Key.Compare(y.Key)
	}
	if !slices.IsSortedFunc(groups.All, order) {
		t.Fatal("the groups are not in order")
	}
}

// checkHolders compares the holders of each address with the Services that have it.
func checkHolders(t *testing.T, g *Group) {
	t.Helper()
	for _, a := range g.Addresses {
		var want []int
		for i, s := range g.Services {
			if slices.Contains(s.Addresses, a) {
				want = append(want, i)
			}
		}
		got := g.Holders(a)
		if !slices.Equal(got, want) {
			t.Fatalf("%s has the holders %v, want %v", a, got, want)
		}
	}
}
