package main

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bfd"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// A link that goes, and comes back as another one, is followed without a plan, by events and not by the next look: BFD hears the
// router by that link and by no other, numbered or not. A pod's link is none of them, also of those from across routers.
func TestBFDFollowsLinks(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "cali1", nstest.New(t), "eth0")
		var p *paths
		log := slog.New(slog.NewTextHandler(t.Output(), nil))
		links := link.New(log, func() { p.loop.Hurry() })
		p = newPaths(log, bgp.New(bgp.Config{Log: log, Command: testEngine}), links.Links, nil, func() {})
		var mu sync.Mutex
		var last []bfd.Peer
		ours, theirs := net.Pipe()
		go p.bfd.Serve(ours)
		go func() {
			for in := json.NewDecoder(theirs); ; {
				var order []bfd.Peer
				if in.Decode(&order) != nil {
					return
				}
				mu.Lock()
				last = order
				mu.Unlock()
			}
		}()
		ordered := func(name string) []int {
			mu.Lock()
			defer mu.Unlock()
			for _, p := range last {
				if p.Name == name {
					return p.Links
				}
			}
			return nil
		}
		go func() { _ = links.Run(t.Context()) }()
		go func() { _ = p.loop.Run(t.Context()) }()
		nstest.Until(t, patience, "the links are known", links.Synced)
		profile := &lb.BFD{Transmit: time.Second, Receive: time.Second, Multiplier: 3, MinimumTTL: 254}
		peers := []lb.Peer{
			{Name: "v4", Address: netip.MustParseAddr("192.0.2.2"), LocalASN: 1, PeerASN: 2, BFD: profile},
			{Name: "v6", Address: netip.MustParseAddr("2001:db8::2"), LocalASN: 1, PeerASN: 2, BFD: profile},
			{Name: "far", Address: netip.MustParseAddr("203.0.113.2"), LocalASN: 1, PeerASN: 2, MultiHop: true, BFD: profile},
		}
		p.set(bgp.Desired{Peers: peers}, nil)
		worst := time.Duration(0)
		follows := func(what string, index ...int) {
			t.Helper()
			began := time.Now()
			nstest.Until(t, patience, what, func() bool {
				far := ordered("far")
				return slices.Equal(ordered("v4"), index) && slices.Equal(ordered("v6"), index) && len(far) == 1+len(index) &&
					!slices.Contains(far, self.Link("cali1").Attrs().Index)
			})
			worst = max(worst, time.Since(began))
		}
		for range 20 {
			nstest.Veth(t, self, "eth0", ns, "eth0")
			self.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64")
			follows("the router is heard by the link", self.Link("eth0").Attrs().Index)
			self.Delete("eth0")
			follows("the router is heard by no link")
		}
		t.Logf("links were followed in %v at worst", worst)
		if worst > time.Second {
			t.Errorf("a link was followed after %v", worst)
		}
	})
}
