package main

import (
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// TestUnassigned: only what a pool covers and nobody has may be a foreign machine's.
func TestUnassigned(t *testing.T) {
	a := netip.MustParseAddr
	p := plan.Plan{Filter: lb.Filter{
		Guarded: []lb.Range{{From: a("192.0.2.0"), To: a("192.0.2.9")}, {From: a("2001:db8::"), To: a("2001:db8::ff")}},
		Frontends: []lb.Frontend{
			{Address: a("192.0.2.3"), Protocol: "TCP", Port: 80}, {Address: a("192.0.2.3"), Protocol: "TCP", Port: 443},
			{Address: a("2001:db8::3"), Protocol: "UDP", Port: 53},
		},
	}}
	for text, want := range map[string]bool{
		"192.0.2.2": true, "192.0.2.3": false, "192.0.2.4": true, "192.0.2.10": false, "2001:db8::3": false, "2001:db8::4": true, "2001:db8:1::": false,
	} {
		if got := unassigned(p, a(text)); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
