package main

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/k8s"
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
		log, links := slog.New(slog.DiscardHandler), oneLink(t, self)
		earlierRun(t, links)
		clients, err := k8s.ClientsFor(&rest.Config{Host: "http://192.0.2.3"}, "test")
		if err != nil {
			t.Fatal(err)
		}
		w := &syncer{
			node: "w1", log: log, bgp: bgp.New(bgp.Config{Log: log, Command: testEngine}), filter: newTestGuard(false),
			relays: newRelays(log, settings{relay: true}, links, func() {}),
		}
		if w.cluster, err = k8s.New(clients, k8s.Config{Log: log, Component: "test", Namespace: "holdfast", DaemonSet: "speaker", Speaker: true,
			Kick: func() {}}); err != nil {
			t.Fatal(err)
		}
		if err := w.filterOnly(w.read(links())); err != nil {
			t.Fatal(err)
		}
		if got := self.Output("nft", "list", "table", "inet", "holdfast"); !strings.Contains(got, relayedAddress) {
			t.Errorf("%s is relayed, but not in the filter:\n%s", relayedAddress, got)
		}
	})
}

// TestRelayOff: with --relay=false nothing is planned to be relayed, and what an earlier run relayed is removed.
func TestRelayOff(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self := nstest.Self(t)
		links := oneLink(t, self)
		earlierRun(t, links)
		tables := func() string { return self.Output("nft", "list", "tables") }
		if got := tables(); !strings.Contains(got, "ip holdfast-relay") || !strings.Contains(got, "ip6 holdfast-relay") {
			t.Fatalf("the earlier run left\n%s", got)
		}
		s := moved()
		off := newRelays(slog.New(slog.DiscardHandler), settings{}, links, func() {})
		on := newRelays(slog.New(slog.DiscardHandler), settings{relay: true}, links, func() {})
		if n := len(on.plan("w1", s).Relays); n != 1 {
			t.Errorf("%d relays are planned where it is on", n)
		}
		if p := off.plan("w1", s); len(p.Relays) != 0 || p.Owners[netip.MustParseAddr(relayedAddress)] != "w1" {
			t.Errorf("planned are the relays %v and the owners %v", p.Relays, p.Owners)
		}
		if got := off.inherited(); len(got) != 0 {
			t.Errorf("inherited are %v", got)
		}
		for range 2 {
			if err := off.set(desiredRelay(time.Time{})); err != nil {
				t.Fatal(err)
			}
			if got := tables(); strings.Contains(got, "holdfast-relay") {
				t.Errorf("relaying is off, and there is\n%s", got)
			}
		}
		if got := off.state(); got != "off" {
			t.Errorf("/debug/state shows %v", got)
		}
	})
}

// moved is a State in which an address moves from w2 to w1.
func moved() lb.State {
	a, all := netip.MustParseAddr(relayedAddress), []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	s := lb.State{Nodes: map[string]lb.Node{}, Members: map[string]bool{}, Links: map[string][]lb.Link{}, Now: time.Now()}
	for n, address := range map[string]string{"w1": "192.0.2.1", "w2": "192.0.2.2"} {
		s.Nodes[n], s.Members[n] = lb.Node{Name: n}, true
		s.Links[n] = []lb.Link{{Name: "eth0", Prefixes: all, Addresses: []netip.Addr{netip.MustParseAddr(address)}, Default: true}}
	}
	s.Nodes["w2"] = lb.Node{Name: "w2", Draining: true}
	s.Pools = []lb.Pool{{Name: "pool", Ranges: []lb.Range{{From: a, To: a}}}}
	s.L2Advertisements = []lb.L2Advertisement{{Name: "all"}}
	s.Services = []lb.Service{{Key: lb.Key{Namespace: "ns", Name: "web"}, Addresses: []netip.Addr{a}, Serving: true}}
	s.Here.Previous = &lb.Previous{Owners: map[netip.Addr]string{a: "w2"}}
	return s
}

// TestRelayedEnds: the filter hears of a relay that ends, and of one that begins again.
func TestRelayedEnds(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		kicked := make(chan struct{}, 1)
		relayer := relay.New(relay.Config{
			Log: slog.New(slog.DiscardHandler), Links: oneLink(t, nstest.Self(t)), Changed: func() { kicked <- struct{}{} },
			Timers: relay.Timers{IdleTime: time.Second, Timers: nft.Timers{AuditInterval: 20 * time.Millisecond}},
		})
		r := &relays{kept{table: relayer, on: true}, relayer}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- r.run(ctx) }()
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
