package main

import (
	"context"
	"errors"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/relay"
	"k8s.io/client-go/rest"
)

const relayedAddress = "192.0.2.100"

// desiredRelay relays an address to another node since a time.
func desiredRelay(since time.Time) relay.Desired {
	return relay.Desired{Relays: []lb.Relay{
		{Address: netip.MustParseAddr(relayedAddress), Former: "w2", Via: netip.MustParseAddr("192.0.2.2"), Link: "eth0", Start: since},
	}}
}

// oneLink gives the namespace a link, and returns a source of links.
func oneLink(t *testing.T, self *nstest.NS) func() []lb.Interface {
	nstest.Veth(t, self, "eth0", nstest.New(t), "eth0")
	return func() []lb.Interface {
		l := self.Link("eth0").Attrs()
		return []lb.Interface{{Index: l.Index, Name: l.Name, MAC: lb.MACFrom(l.HardwareAddr), Up: true}}
	}
}

// earlierRun leaves a relay in the kernel.
func earlierRun(t *testing.T, links func() []lb.Interface) {
	t.Helper()
	former := relay.New(relay.Config{Log: slog.New(slog.DiscardHandler), Links: links})
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- former.Run(ctx) }()
	d := desiredRelay(time.Time{})
	d.Expect = true // both tables
	former.Set(d)
	stop()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
}

// TestFilterOnlyRelayed: while the other speakers are not known, the limits on new connections do not apply to addresses that the
// kernel still relays.
func TestFilterOnlyRelayed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self := nstest.Self(t)
		links := oneLink(t, self)
		earlierRun(t, links)
		w := newTestSyncer(links)
		w.atCluster(t, &rest.Config{Host: "http://192.0.2.3"})
		if err := w.filterOnly(w.read(links())); err != nil {
			t.Fatal(err)
		}
		if got := self.Output("nft", "list", "table", "inet", "holdfast"); !strings.Contains(got, relayedAddress) {
			t.Errorf("%s is relayed, but not in the filter:\n%s", relayedAddress, got)
		}
	})
}

// TestOff: where filtering or relaying is turned off, what an earlier run left is removed.
func TestOff(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self := nstest.Self(t)
		links := oneLink(t, self)
		earlierRun(t, links)
		if err := newTestGuard(false).set(plan.Plan{}, nil, lb.Node{Name: "w1"}, nil); err != nil {
			t.Fatal(err)
		}
		tables := func() string { return strings.TrimSpace(self.Output("nft", "list", "tables")) }
		if got := tables(); strings.Count(got, "holdfast") != 3 {
			t.Fatalf("the earlier run left\n%s", got)
		}
		off, relays := newTestGuard(true), newRelays(slog.New(slog.DiscardHandler), settings{}, links, func() {})
		for range 2 {
			if err := errors.Join(off.set(plan.Plan{}, nil, lb.Node{Name: "w1"}, nil), relays.set(desiredRelay(time.Time{}))); err != nil {
				t.Fatal(err)
			}
			if got := tables(); got != "" || off.failed() || len(relays.lasting()) != 0 {
				t.Errorf("filter and relays are off, and there is\n%s", got)
			}
		}
	})
}

// TestRelayedEnds: the filter hears of a relay that ends, and of one that begins again.
func TestRelayedEnds(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		kicked := make(chan struct{}, 1)
		relayer := relay.New(relay.Config{
			Log: slog.New(slog.DiscardHandler), Links: oneLink(t, nstest.Self(t)), Changed: func() { kicked <- struct{}{} },
			Timers: relay.Timers{IdleTime: time.Second, Timers: nft.Timers{AuditInterval: 20 * time.Millisecond}},
		})
		r := &relays{relayer, true}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- r.Run(ctx) }()
		want := []netip.Addr{netip.MustParseAddr(relayedAddress)}
		d := desiredRelay(time.Now())
		if err := r.set(d); err != nil {
			t.Fatal(err)
		}
		if got := r.relayed(d.Relays); !slices.Equal(got, want) {
			t.Errorf("relayed are %v", got)
		}
		select {
		case <-kicked:
		case <-time.After(10 * time.Second):
			t.Fatal("the end of the relay kicks nothing")
		}
		if got := r.relayed(d.Relays); len(got) != 0 {
			t.Errorf("after its end relayed are %v", got)
		}
		if got := r.relayed(desiredRelay(time.Now()).Relays); !slices.Equal(got, want) {
			t.Errorf("for the address that moves again relayed are %v", got)
		}
		if got, via := r.inherited(), netip.MustParseAddr("192.0.2.2"); len(r.lasting()) != 0 || got[want[0]] != via {
			t.Errorf("a next run would inherit %v, and relay %v", got, r.lasting())
		}
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
}
