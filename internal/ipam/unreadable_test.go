package ipam

import (
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// A pool with fields that cannot be read keeps what it gave, and gives nothing new: what it cannot say may
// have been a limit.
func TestUnreadablePool(t *testing.T) {
	p := pool("p", "192.0.2.1-192.0.2.9")
	p.Unreadable = true
	var ledger Ledger
	r := ledger.Assign(lb.State{Pools: []lb.Pool{p}, Services: []lb.Service{service("has", holding("192.0.2.1")), service("wants")}})
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
