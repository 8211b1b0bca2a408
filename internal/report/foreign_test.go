package report

import (
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// TestUnassigned: only what a pool covers and no Service has may be a foreign machine's.
func TestUnassigned(t *testing.T) {
	a := netip.MustParseAddr
	p := plan.Plan{Filter: lb.Filter{
		Guarded:   []lb.Range{{From: a("192.0.2.0"), To: a("192.0.2.9")}, {From: a("2001:db8::"), To: a("2001:db8::ff")}},
		Frontends: lb.MapOf(map[netip.Addr]*[]lb.Frontend{a("192.0.2.3"): {}, a("2001:db8::3"): {}}),
	}}
	for text, want := range map[string]bool{
		"192.0.2.2": true, "192.0.2.3": false, "192.0.2.4": true, "192.0.2.10": false, "2001:db8::3": false,
		"2001:db8::4": true, "2001:db8:1::": false,
	} {
		if got := isUnassigned(p, a(text)); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
