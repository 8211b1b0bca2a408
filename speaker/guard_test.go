package main

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

func newTestGuard(off bool) *guard {
	s := settings{nodeName: "w1"}
	s.Options.NoFilter = off
	return newGuard(slog.New(slog.DiscardHandler), s, nil, func() {})
}

// TestGuard: with filtering turned off, the filter of an earlier run is removed.
func TestGuard(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self := nstest.Self(t)
		tables := func() string { return strings.TrimSpace(self.Output("nft", "list", "tables")) }
		address := netip.MustParseAddr("192.0.2.10")
		p := plan.Plan{Filter: lb.Filter{
			Guarded: []lb.Range{{From: netip.MustParseAddr("192.0.2.0"), To: netip.MustParseAddr("192.0.2.255")}},
			Frontends: []lb.Frontend{{Address: address, Protocol: "TCP", Port: 80, Access: lb.Access{Restricted: true,
				Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
				ClusterIP: netip.MustParseAddr("10.96.0.7")}},
			Pings: []netip.Addr{address},
		}}
		node := lb.Node{Name: "w1", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
		links := []lb.Interface{{Name: "eth0"}, {Name: "veth1"}}

		on := newTestGuard(false)
		if err := on.set(p, nil, node, links); err != nil {
			t.Fatal(err)
		}
		if ok, _ := on.table.Enforced(); !ok || on.failed() || tables() != "table inet holdfast" {
			t.Errorf("in force: %v, failed: %v, tables: %s", ok, on.failed(), tables())
		}
		off := newTestGuard(true)
		for range 2 {
			if err := off.set(p, nil, node, links); err != nil {
				t.Fatal(err)
			}
		}
		if got := tables(); got != "" || off.failed() || off.state() != "off" {
			t.Errorf("turned off: tables %q, failed: %v", got, off.failed())
		}
	})
}

// TestGuardProblems: a filter that is not in force becomes a problem after the time that a rebuild takes.
func TestGuardProblems(t *testing.T) {
	g := newTestGuard(false) // nothing was ever set
	reasons := func(links ...lb.Interface) (out []lb.Reason) {
		for _, p := range g.problems(links) {
			out = append(out, p.Reason)
		}
		return out
	}
	if got := reasons(lb.Interface{Name: "eth0"}); got != nil {
		t.Errorf("at the start: %v", got)
	}
	nstest.Until(t, 10*time.Second, "the grace to end", g.failed)
	want := []lb.Reason{lb.FilterNotInForce, lb.FilterNotEnforceable}
	if diff := cmp.Diff(want, reasons(lb.Interface{Name: "eth0", Programs: []string{"XDP"}})); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	g = newTestGuard(true)
	if got := reasons(lb.Interface{Name: "cilium_host"}); got != nil {
		t.Errorf("turned off: %v", got)
	}
}

// TestGuardRefused: a Service that the filter closes is named, and costs no other one the filter.
func TestGuardRefused(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		bad, good := lb.Key{Namespace: "ns", Name: "bad"}, lb.Key{Namespace: "ns", Name: "good"}
		var p plan.Plan
		for _, s := range []struct {
			address string
			service lb.Key
		}{{"192.0.2.10", bad}, {"192.0.2.10", bad}, {"192.0.2.11", good}} {
			p.Filter.Frontends = append(p.Filter.Frontends, lb.Frontend{Address: netip.MustParseAddr(s.address), Protocol: "TCP", Port: 80, Service: s.service,
				Access: lb.Access{Restricted: true}})
		}
		g := newTestGuard(false)
		if err := g.set(p, nil, lb.Node{Name: "w1"}, nil); err != nil || !g.inForce() || g.failed() {
			t.Fatalf("not in force: %v", err)
		}
		if diff := cmp.Diff(map[lb.Key]bool{bad: true}, g.refused()); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		problems := g.problems(nil)
		if len(problems) != 1 || problems[0].Reason != lb.RangesRefused || !strings.Contains(problems[0].Message, "ns/bad") ||
			strings.Contains(problems[0].Message, "ns/good") {
			t.Errorf("problems %v", problems)
		}
		p.Filter.Frontends = p.Filter.Frontends[1:]
		if err := g.set(p, nil, lb.Node{Name: "w1"}, nil); err != nil || g.refused() != nil || g.problems(nil) != nil {
			t.Errorf("afterwards: %v, refused %v", err, g.refused())
		}
	})
}
