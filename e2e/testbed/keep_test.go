package testbed

import (
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/e2e/probe"
)

func TestSurvived(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	all := Survived{{v4, probe.Kept{Opened: 100, Answered: 100}}, {v6, probe.Kept{Opened: 100, Answered: 100}}}
	some := Survived{
		{v4, probe.Kept{Opened: 100, Answered: 99, Errors: map[string]int{"EOF": 1}}},
		{v6, probe.Kept{Opened: 100, Answered: 37, Errors: map[string]int{"EOF": 1, "read: connection reset by peer": 62}}},
	}
	for _, tt := range []struct {
		survived Survived
		lost     int
		text     string
	}{
		{all, 0, "100 of 100 connections over IPv4, 100 of 100 over IPv6 survived"},
		{some, 64,
			"99 of 100 connections over IPv4, 37 of 100 over IPv6 survived (map[EOF:2 read: connection reset by peer:62])"},
	} {
		if got := tt.survived.Lost(); got != tt.lost {
			t.Errorf("%d are lost, want %d", got, tt.lost)
		}
		if got := tt.survived.String(); got != tt.text {
			t.Errorf("%q, want %q", got, tt.text)
		}
	}
}
