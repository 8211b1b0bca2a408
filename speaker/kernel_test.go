package main

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/filter"
	"github.com/holdfast-lb/holdfast/internal/kernel"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// without returns a Monitor of a kernel that lacks features.
func without(t *testing.T, features ...kernel.Feature) *kernel.Monitor {
	t.Helper()
	var tries []kernel.Try
	for _, f := range features {
		tries = append(tries, kernel.Try{Feature: f, Try: func() (string, error) { return "part", unix.EOPNOTSUPP }})
	}
	checked := make(chan struct{}, 1)
	m := kernel.New(kernel.Config{Log: slog.New(slog.DiscardHandler), Tries: tries, Changed: func() { checked <- struct{}{} }})
	go func() { _ = m.Run(t.Context()) }()
	<-checked
	return m
}

// missing returns the features that the attempts find missing.
func missing(tries []kernel.Try) map[kernel.Feature]error {
	out := map[kernel.Feature]error{}
	for _, one := range tries {
		if part, err := one.Try(); err != nil {
			out[one.Feature] = errors.Join(err, errors.New(part))
		}
	}
	return out
}

// TestTries: this kernel has every feature, and a process without capabilities is refused each of them.
func TestTries(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		all := tries(settings{realtime: true, relay: true})
		if len(all) != 9 {
			t.Errorf("%d features are tried, want all of them", len(all))
		}
		for f, err := range missing(all) {
			t.Errorf("feature %d is missing: %v", f, err)
		}
		nstest.Without(t, unix.CAP_NET_ADMIN, func() {
			for _, f := range []kernel.Feature{kernel.PacketFilter, kernel.InternalTraffic, kernel.ConnectionLimits, kernel.DropLogs, kernel.RelaysIPv4,
				kernel.RelaysIPv6, kernel.HeadStart} {
				if err := missing(all)[f]; !errors.Is(err, unix.EPERM) {
					t.Errorf("feature %d without NET_ADMIN: %v", f, err)
				}
			}
		})
		few := settings{relay: true}
		few.Options.NoFilter = true
		if got := len(tries(few)); got != 4 {
			t.Errorf("without a filter and real-time priority %d features are tried", got)
		}
	})
}

// TestPossible: the filter does without what the kernel lacks, and keeps all else.
func TestPossible(t *testing.T) {
	d := filter.Desired{Filter: lb.Filter{Frontends: []lb.Frontend{{
		Port: 80, Access: lb.Access{Restricted: true, ConnectionLimit: 5, RateLimit: 7}, ClusterIP: netip.MustParseAddr("10.96.0.7"),
	}}}}
	for _, tt := range []struct {
		lack        kernel.Feature
		internal    bool
		connections int
	}{
		{kernel.RelaysIPv4, true, 5}, {kernel.InternalTraffic, false, 5}, {kernel.ConnectionLimits, true, 0},
	} {
		got := possible(d, without(t, tt.lack))
		f := got.Frontends[0]
		if f.ClusterIP.IsValid() != tt.internal || f.ConnectionLimit != tt.connections || f.RateLimit != 7 || !f.Restricted || d.Frontends[0].ConnectionLimit != 5 {
			t.Errorf("without feature %d: %+v", tt.lack, got)
		}
	}
}

// TestGuardWithoutLabels: a kernel that would refuse the whole filter because of traffic from within the cluster gets one
// that enforces the ranges.
func TestGuardWithoutLabels(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		g := newTestGuard(false)
		g.kernel = without(t, kernel.InternalTraffic, kernel.ConnectionLimits)
		p := plan.Plan{Filter: lb.Filter{Frontends: []lb.Frontend{{
			Address: netip.MustParseAddr("192.0.2.10"), Protocol: "TCP", Port: 80, Access: lb.Access{Restricted: true, ConnectionLimit: 3},
			ClusterIP: netip.MustParseAddr("10.96.0.7"),
		}}}}
		if err := g.set(p, nil, lb.Node{}, []lb.Interface{{Name: "eth0"}}); err != nil {
			t.Fatal(err)
		}
		rules := nstest.Self(t).Output("nft", "list", "ruleset")
		if strings.Contains(rules, "ct label") || strings.Contains(rules, "ct count") || !strings.Contains(rules, "192.0.2.10 . tcp . 80") {
			t.Errorf("%s", rules)
		}
	})
}

// TestKernelProblems: what the kernel lacks is a problem of the node, and says why the filter is not in force.
func TestKernelProblems(t *testing.T) {
	g := newTestGuard(false) // nothing was ever set
	w := &syncer{node: "w1", kernel: without(t, kernel.PacketFilter, kernel.RelaysIPv6), filter: g}
	got := w.kernelProblems()
	if len(got) != 2 || got[0].Reason != lb.KernelFeatureMissing || got[1].Object.Name != "w1" || !strings.Contains(got[1].Message, "relays of IPv6") {
		t.Errorf("problems %+v", got)
	}
	nstest.Until(t, 10*time.Second, "the grace to end", g.failed)
	if got := g.problems(nil)[0].Message; !strings.HasSuffix(got, "see the log of its speaker") {
		t.Error(got)
	}
	g.kernel = w.kernel
	if got := g.problems(nil)[0].Message; !strings.Contains(got, "it needs") {
		t.Error(got)
	}
}

// TestLogComesBack: what the kernel lacks for a time costs the log of refused packets, and for that time only.
func TestLogComesBack(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		g := newTestGuard(false)
		p := plan.Plan{Filter: lb.Filter{Frontends: []lb.Frontend{{Address: netip.MustParseAddr("192.0.2.10"), Protocol: "TCP", Port: 80,
			Access: lb.Access{Restricted: true, LogDrops: true}}}}}
		for _, lacks := range []bool{false, true, false} {
			if g.kernel = nil; lacks {
				g.kernel = without(t, kernel.DropLogs)
			}
			if err := g.set(p, nil, lb.Node{}, nil); err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(nstest.Self(t).Output("nft", "list", "ruleset"), "log prefix"); got == lacks {
				t.Errorf("without NFLOG %v: logs %v", lacks, got)
			}
		}
	})
}
