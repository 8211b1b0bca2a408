package main

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/report"
)

// TestWitness: a wrong entry in the memory is found within ten minutes, counted once, and gone with the next plan; none
// is found before.
func TestWitness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newTestSyncer(noLinks), netip.MustParseAddr("192.0.2.1")
		var plant atomic.Bool
		state := lb.State{
			Nodes: map[string]lb.Node{"w1": {Name: "w1"}}, Members: map[string]bool{"w1": true},
			L2Advertisements: []lb.L2Advertisement{{Name: "l2"}},
			Pools:            []lb.Pool{{Name: "p", Ranges: []lb.Range{{From: a, To: a}}}},
			Services:         []*lb.Service{{Key: lb.Key{Name: "web"}, Addresses: []netip.Addr{a}, Backends: servedOn("w1")}},
			Here:             lb.Here{Previous: &lb.Previous{Owners: lb.MapOf(map[netip.Addr]string{a: "w1"})}},
		}
		w.loop = daemon.NewLoop(daemon.LoopConfig{
			Name: "plan", Log: w.log, Sync: func(context.Context) (time.Duration, error) {
				p := w.memory.ForNode("w1", state)
				if plant.Swap(false) {
					w.memory.Plant()
					p.Owners = p.Owners.Put(a, "w2")
				}
				w.last.Store(&planned{Standing: report.Standing{Plan: p}, Epoch: 1})
				return 0, nil
			},
		})
		background(t, w.loop.Run, w.witness.Run)
		for minutes, want := range []int64{0, 1, 1} {
			time.Sleep(10 * time.Minute)
			if got, owner := w.witness.repairs.Load(), w.last.Load().Plan.Owners.Of(a); got != want || owner != "w1" {
				t.Errorf("after %d minutes: %d repairs, want %d; the owner is %s", 10*(minutes+1), got, want, owner)
			}
			plant.Store(minutes == 0)
		}
	})
}

// TestLinksChanged: a link that others know and that is gone makes a plan at once, though a burst has it wait; nothing
// else does.
func TestLinksChanged(t *testing.T) {
	known := lb.Interface{
		Name: "eth0", Index: 2, MAC: lb.MAC{2, 0, 0, 0, 0, 1}, Up: true,
		Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")},
	}
	for name, tt := range map[string]struct {
		links []lb.Interface
		runs  int64
	}{"gone": {nil, 2}, "another one": {[]lb.Interface{known, {Name: "dummy"}}, 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestSyncer(noLinks)
				w.loop = daemon.NewLoop(daemon.LoopConfig{Name: "plan", Log: w.log, MinInterval: time.Hour,
					Sync: func(context.Context) (time.Duration, error) { return 0, nil }})
				m := localMember([]lb.Interface{known}, nil, nil)
				if len(m.Links) != 1 {
					t.Fatal("the link cannot announce")
				}
				w.sent.Store(&m)
				background(t, w.loop.Run)
				synctest.Wait()
				w.linksChanged(tt.links)
				time.Sleep(time.Second)
				if got := w.loop.Completed(); got != tt.runs {
					t.Errorf("%d runs, want %d", got, tt.runs)
				}
			})
		})
	}
}

// servedOn returns Backends of all ports in both families on these nodes.
func servedOn(nodes ...string) lb.Backend {
	return lb.Backend{Families: lb.FamilySetOf(lb.IPv4, lb.IPv6), Nodes: lb.Names{}.With(nodes...)}
}
