package liveness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

var quiet = slog.New(slog.DiscardHandler)

func node(name string) lb.Object { return lb.Object{Kind: "Node", Name: name} }

// twoNodes is a cluster of a and b, whose API server is away.
type twoNodes struct{}

func (twoNodes) speakers() map[string]netip.Addr {
	return map[string]netip.Addr{"a": netip.MustParseAddr("192.0.2.1"), "b": netip.MustParseAddr("192.0.2.2")}
}

func (c twoNodes) Kernels(port uint16) map[string][]netip.AddrPort {
	out := map[string][]netip.AddrPort{}
	for node, a := range c.speakers() {
		out[node] = []netip.AddrPort{netip.AddrPortFrom(a, port)}
	}
	return out
}

func (twoNodes) Vote(context.Context, string) (Vote, error) { return Vote{}, ErrAway }

// TestCutOff: b is cut off, powers on again without its speaker, and is heard again.
func TestCutOff(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "eth0", far, "eth0")
		self.AddAddress("eth0", "192.0.2.1/24")
		far.AddAddress("eth0", "192.0.2.2/24")

		var changed atomic.Int64
		var probes *daemon.Loop
		m := New(Config{
			Log: quiet, Node: node("a"), MembersPort: 7947, Cluster: twoNodes{}, Asker: &lan{},
			Links: func() []lb.Interface { return nil }, Changed: func() { changed.Add(1) }, SilenceChanged: func() {},
			KickProbe: func() { probes.Kick() },
		})
		probes = daemon.NewLoop(daemon.LoopConfig{Log: quiet, Sync: m.Probe})
		ctx, stop := context.WithCancel(t.Context())
		ran, probed := make(chan error, 1), make(chan error, 1)
		go func() { ran <- m.Run(ctx) }()
		go func() { probed <- probes.Run(ctx) }()
		defer func() {
			stop()
			if err := errors.Join(<-ran, <-probed); err != nil {
				t.Error(err)
			}
		}()

		services := []*lb.Service{{Serving: true, ServingNodes: nodes("b")}}
		set := func(alive string) {
			m.Set(Known{View: heartbeat.Nodes{Alive: nodes(alive)}, Speakers: twoNodes{}.speakers(), Services: services})
		}
		lost := func() string { return fmt.Sprint(m.State().CutOffFrom) }
		must := func(what, want string) {
			t.Helper()
			nstest.Until(t, 30*time.Second, what+": lost are "+want, func() bool { return lost() == want })
		}
		const nobody, inDoubt, known = "map[]", "map[b:false]", "map[b:true]"
		set("a b")
		must("both are heard", nobody)
		far.SetDown("eth0")
		set("a")
		if got := lost(); got != inDoubt {
			t.Errorf("before anything was asked lost are %s, want %s", got, inDoubt)
		}
		nstest.Until(t, 30*time.Second, "the plan loop is kicked", func() bool { return changed.Load() > 0 })
		must("b does not answer", known)
		if s := m.Silence(false); s.missed != 1 || !s.Complete || len(s.Unreachable) != 1 {
			t.Errorf("silence: %+v", s)
		}
		if p := m.State().Problems; len(p) != 1 || p[0].Reason != lb.CutOff || p[0].Object != node("a") {
			t.Errorf("problems: %v", p)
		}
		yield := func(to ...string) {
			m.prober.mu.Lock()
			defer m.prober.mu.Unlock()
			m.prober.partition.YieldsTo = to
		}
		yield("b")
		if s := m.State(); !s.Alive["b"] || !s.HeldDown["a"] || len(s.Problems) != 1 || !s.CutOffFrom["b"] {
			t.Errorf("while it yields to b, which it does not hear: %+v", s)
		}
		set("a")
		if got := lost(); got != known {
			t.Errorf("yielding, lost are %s, want %s", got, known)
		}
		yield()
		far.SetUp("eth0")
		must("b answers, which is not believed at once", inDoubt)
		set("a b")
		must("both are heard", nobody)
		if p := m.State().Problems; p != nil {
			t.Errorf("problems: %v", p)
		}
	})
}
