package ipam

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// A pool with fields that cannot be read keeps what it gave, and gives nothing new: what it cannot say may
// have been a limit.
func TestUnreadablePool(t *testing.T) {
	p := pool("p", "192.0.2.1-192.0.2.9")
	p.Unreadable = true
	r := Assign(lb.State{Pools: []lb.Pool{p}, Services: []lb.Service{service("has", holding("192.0.2.1")), service("wants")}})
	got := map[string]*Assignment{}
	for _, a := range r.Assignments {
		got[a.Service.Name] = a
	}
	if has := got["has"]; has.Reason != lb.Assigned || len(has.Addresses) != 1 {
		t.Errorf("the holder: %+v", has)
	}
	if wants := got["wants"]; len(wants.Addresses) != 0 || wants.Reason != lb.NoPool {
		t.Errorf("the other: %+v", wants)
	}
	if u := r.Pools[0]; u.AssignedIPv4 != 1 || u.AvailableIPv4 != 0 {
		t.Errorf("usage: %+v", u)
	}
}

// What a Service had from a pool that cannot be read it waits for, and gets when the pool can be read again. No other
// address is as good, and another Service gets none of such a pool.
func TestUnreadablePoolIsWaitedFor(t *testing.T) {
	const had = "192.0.2.1"
	other := pool("other", "198.51.100.1-198.51.100.9")
	whole := pool("p", "192.0.2.1-192.0.2.9")
	field, ranges := whole, pool("p")
	field.Unreadable, ranges.Unreadable = true, true
	renew := func(s *lb.Service) { s.Renew = true }
	const waits = `s [] Unreadable: had 192.0.2.1 before, of pool "p", which has fields that cannot be read: it waits for that pool; ` +
		`to take another address, remove the annotation holdfast.dev/assigned`
	for _, tt := range []struct {
		name    string
		p       lb.Pool
		service lb.Service
		want    string
	}{
		{"a field", field, service("s", recalling(had, "p")), waits},
		{"its ranges", ranges, service("s", recalling(had, "p")), waits},
		{"nothing", whole, service("s", recalling(had, "p")), `s [192.0.2.1] Assigned: has 192.0.2.1 from pool "p"`},
		{"a record of another pool", ranges, service("s", recalling(had, "gone")), `s [198.51.100.1] Assigned: has 198.51.100.1 from pool "other"`},
		{"it renews", field, service("s", recalling(had, "p"), renew), `s [198.51.100.1] Assigned: has 198.51.100.1 from pool "other"`},
		{"it holds the address and renews", field, service("s", holding(had), from(had, "p"), renew), `s [192.0.2.1] Assigned: has 192.0.2.1 from pool "p"`},
		{"the same of a pool without ranges", ranges, service("s", holding(had), from(had, "p"), renew), `s [192.0.2.1] Assigned: has 192.0.2.1, which is in no pool any more`},
	} {
		r := Assign(lb.State{Pools: []lb.Pool{tt.p, other}, Services: []lb.Service{tt.service}})
		if diff := cmp.Diff([]string{tt.want}, text(r)); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.name, diff)
		}
		if a := r.Assignments[0]; len(a.Record)+len(a.Awaits) != 1 {
			t.Errorf("%s: the record is %v, and it awaits %v", tt.name, a.Record, a.Awaits)
		}
	}
}
