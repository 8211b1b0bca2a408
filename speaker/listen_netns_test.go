package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/loop"
	"github.com/holdfast-lb/holdfast/internal/members"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// twoNodes is a cluster of a and b.
type twoNodes struct{}

func (twoNodes) Synced() bool       { return true }
func (twoNodes) Uninstalling() bool { return false }

func (twoNodes) SpeakerAddresses() map[string]netip.Addr {
	return map[string]netip.Addr{"a": netip.MustParseAddr("192.0.2.1"), "b": netip.MustParseAddr("192.0.2.2")}
}

func (c twoNodes) Kernels(port uint16) map[string][]netip.AddrPort {
	out := map[string][]netip.AddrPort{}
	for node, a := range c.SpeakerAddresses() {
		out[node] = []netip.AddrPort{netip.AddrPortFrom(a, port)}
	}
	return out
}

// TestListener: b is cut off, powers on again without its speaker, and is heard again.
func TestListener(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", far, "eth0")
		node.AddAddress("eth0", "192.0.2.1/24")
		far.AddAddress("eth0", "192.0.2.2/24")

		var view atomic.Pointer[members.View]
		both, alone := &members.View{Alive: nodes("a b")}, &members.View{Alive: nodes("a")}
		view.Store(both)
		var told atomic.Int64
		l := newListener(slog.New(slog.DiscardHandler), "a", 7947)
		l.cluster, l.view, l.api = twoNodes{}, view.Load, func() bool { return false }
		work := loop.New(loop.Config{Name: "silence", Log: l.log, Sync: l.sync, MinInterval: time.Millisecond})
		l.kick, l.lostChanged, l.asked = work.Kick, func() { told.Add(1) }, func() {}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan struct{})
		go func() {
			defer close(ran)
			_ = work.Run(ctx)
		}()
		defer func() { stop(); <-ran }()

		services := []lb.Service{{Serving: true, ServingNodes: nodes("b")}}
		lost := func() string { return fmt.Sprint(l.lost(*view.Load(), services)) }
		must := func(what, want string) {
			t.Helper()
			nstest.Until(t, 30*time.Second, what+": lost are "+want, func() bool { return lost() == want })
		}
		const nobody, inDoubt, known = "map[]", "map[b:false]", "map[b:true]"
		must("both are heard", nobody)
		far.SetDown("eth0")
		view.Store(alone)
		if got := lost(); got != inDoubt {
			t.Errorf("before anything was asked lost are %s, want %s", got, inDoubt)
		}
		nstest.Until(t, 30*time.Second, "whoever plans is told", func() bool { return told.Load() > 0 })
		must("b does not answer", known)
		if s := l.silent(time.Now(), false); s.count != 1 || !s.complete || len(s.unreachable) != 1 {
			t.Errorf("the state says %+v", s)
		}
		if p := l.problems(); len(p) != 1 || p[0].Reason != lb.CutOff {
			t.Errorf("problems: %v", p)
		}
		far.SetUp("eth0")
		must("b answers, which is not believed at once", inDoubt)
		view.Store(both)
		must("both are heard", nobody)
		if p := l.problems(); p != nil {
			t.Errorf("problems: %v", p)
		}
	})
}
