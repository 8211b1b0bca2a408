package ipam

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestSpans compares the set with a map, at both ends of both families too.
func TestSpans(t *testing.T) {
	var around []netip.Addr
	for _, text := range []string{"0.0.0.0", "10.0.0.0", "255.255.255.248", "::", "2001:db8::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff8"} {
		a := netip.MustParseAddr(text)
		for range 8 {
			around = append(around, a)
			a = a.Next()
		}
	}
	random := rand.New(rand.NewPCG(1, 0))
	var s spans
	in := map[netip.Addr]bool{}
	for step := range 20_000 {
		a := around[random.IntN(len(around))]
		// Fill and empty it by turns.
		if random.IntN(4) > 0 == (step/500%2 == 0) {
			s.add(a)
			in[a] = true
		} else {
			s.remove(a)
			delete(in, a)
		}
		for i, r := range s {
			if r.To.Less(r.From) || i > 0 && (r.From.Compare(s[i-1].To) <= 0 || s[i-1].To.Next() == r.From) {
				t.Fatalf("step %d: %v", step, s)
			}
		}
		for _, a := range around {
			want := a
			for in[want] {
				want = want.Next()
			}
			if got := s.past(a); got != want {
				t.Fatalf("step %d: past(%s) is %s, want %s, in %v", step, a, got, want, s)
			}
		}
	}
}
