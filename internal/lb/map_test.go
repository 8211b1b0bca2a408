package lb

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

func randomAddress(r *rand.Rand) netip.Addr {
	if r.IntN(4) == 0 {
		return netip.AddrFrom16([16]byte{0xfd, 14: byte(r.IntN(2)), 15: byte(r.IntN(200))})
	}
	return netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(4)), byte(r.IntN(200))})
}

// TestMap: map after map has what a plain map has, whatever changed before, shares what did not change, and Changes
// finds what did. What was made before stays as it was.
func TestMap(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		var m Map[netip.Addr, int]
		plain := map[netip.Addr]int{}
		for step := range 200 {
			before, had := m, maps.Clone(plain)
			some := map[netip.Addr]bool{}
			for range []int{1, 3, 100}[r.IntN(3)] {
				a := randomAddress(r)
				if some[a] = true; r.IntN(3) > 0 == (step/50%2 == 0) {
					plain[a] = r.IntN(3)
				} else {
					delete(plain, a)
				}
			}
			m = m.With(maps.Keys(some), func(a netip.Addr) (int, bool) { v, has := plain[a]; return v, has })
			differs := !maps.Equal(maps.Collect(m.All()), plain) || !maps.Equal(maps.Collect(before.All()), had) ||
				m.Len() != len(plain)
			if differs {
				t.Fatalf("seed %d, step %d: has %v, want %v", seed, step, m, plain)
			}
			if !slices.IsSortedFunc(slices.Collect(m.Keys()), netip.Addr.Compare) || !reflect.DeepEqual(m, MapOf(plain)) {
				t.Fatalf("seed %d, step %d: another map of the same content", seed, step)
			}
			for range 20 {
				a := randomAddress(r)
				v, has := m.Get(a)
				if w, want := plain[a]; v != w || has != want || m.Has(a) != want || m.Of(a) != w {
					t.Fatalf("seed %d, step %d: %v has %d, %t", seed, step, a, v, has)
				}
			}
			checkChanges(t, before, m, had, plain)
		}
	}
}

func checkChanges(t *testing.T, from, to Map[netip.Addr, int], had, has map[netip.Addr]int) {
	t.Helper()
	want, got, beyond := map[netip.Addr]string{}, map[netip.Addr]string{}, []netip.Addr{}
	for _, m := range []map[netip.Addr]int{had, has} {
		for a := range m {
			x, left := had[a]
			y, right := has[a]
			if left != right || x != y {
				want[a] = fmt.Sprint(x, y, left, right)
			}
		}
	}
	last := netip.Addr{}
	from.Changes(to, func(a netip.Addr, old, new int, had, has bool) {
		if got[a] = fmt.Sprint(old, new, had, has); !last.Less(a) {
			t.Fatalf("%v after %v", a, last)
		}
		if last = a; !has {
			beyond = append(beyond, a)
		}
	})
	if !maps.Equal(got, want) || from.Same(to) != (len(want) == 0) || !slices.Equal(from.Beyond(to), beyond) {
		t.Fatalf("changes are %v, want %v", got, want)
	}
	if gone := from.Without(beyond...); len(gone.Beyond(to)) > 0 || gone.Len() != from.Len()-len(beyond) {
		t.Fatalf("without %v it has %v", beyond, gone)
	}
}

// TestMapShares: of 10,000 entries the change of one copies some dozens, and none if nothing changes.
func TestMapShares(t *testing.T) {
	plain := map[netip.Addr]int{}
	for i := range 10_000 {
		plain[netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})] = i
	}
	m := MapOf(plain)
	parts := map[*entry[netip.Addr, int]]bool{}
	for _, p := range m.parts {
		parts[&p[0]] = true
	}
	for i := 0; i < 10_000; i += 37 {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		same := m.With(slices.Values([]netip.Addr{a}), func(netip.Addr) (int, bool) { return plain[a], true })
		if !Same(same.parts, m.parts) {
			t.Fatalf("%v is as before, and the map is not", a)
		}
		copied := 0
		for _, p := range m.Without(a).parts {
			if !parts[&p[0]] {
				copied += len(p)
			}
		}
		if copied > 1000 || len(m.parts) > 1000 {
			t.Fatalf("without %v %d entries of %d parts are copied", a, copied, len(m.parts))
		}
	}
}
