package liveness

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"golang.org/x/sync/errgroup"
)

// TestSilent: the Silence of a speaker is not complete until each missed node was asked.
func TestSilent(t *testing.T) {
	p := newProber(Config{
		Node: node("a"), Cluster: twoNodes{}, Log: quiet, Changed: func() {}, SilenceChanged: func() {},
		KickProbe: func() {},
	})
	p.set(time.Now(), Known{View: detect.NodeSets{Alive: nodes("a")}, Speakers: twoNodes{}.speakers()})
	if s := p.Silence(false); s.Complete || s.missedCount != 1 {
		t.Errorf("b was never asked: %+v", s)
	}
	p.reach.missed.record(time.Now(), "b", false)
	if s := p.Silence(false); !s.Complete {
		t.Errorf("b was asked: %+v", s)
	}
}

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

// background runs these until the test ends; none of them may fail.
func background(t *testing.T, runs ...func(context.Context) error) {
	var group errgroup.Group
	for _, run := range runs {
		group.Go(func() error { return run(t.Context()) })
	}
	t.Cleanup(func() {
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	})
}

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
		background(t, m.Run, probes.Run)

		services := []*lb.Service{{Backends: lb.Backend{Families: lb.FamilySetOf(lb.IPv4, lb.IPv6), Nodes: lb.Names{"b"}}}}
		set := func(alive string) {
			m.Set(Known{View: detect.NodeSets{Alive: nodes(alive)}, Speakers: twoNodes{}.speakers(), Services: services})
		}
		lost := func() string { return fmt.Sprint(m.State().CutOffFrom) }
		must := func(what, want string) {
			t.Helper()
			nstest.Until(t, 30*time.Second, what+": lost are "+want, func() bool { return lost() == want })
		}
		const none, inDoubt, known = "map[]", "map[b:false]", "map[b:true]"
		set("a b")
		must("both are heard", none)
		far.SetDown("eth0")
		set("a")
		if got := lost(); got != inDoubt {
			t.Errorf("before anything was asked lost are %s, want %s", got, inDoubt)
		}
		nstest.Until(t, 30*time.Second, "the plan loop is kicked", func() bool { return changed.Load() > 0 })
		must("b does not answer", known)
		if s := m.Silence(false); s.missedCount != 1 || !s.Complete || len(s.Unreachable) != 1 {
			t.Errorf("silence: %+v", s)
		}
		if p := m.State().Problems; len(p) != 1 || p[0].Reason != lb.CutOff || p[0].Object != node("a") {
			t.Errorf("problems: %v", p)
		}
		yield := func(to ...string) {
			m.prober.mu.Lock()
			defer m.prober.mu.Unlock()
			m.reader.partition.YieldsTo = to
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
		must("both are heard", none)
		if p := m.State().Problems; p != nil {
			t.Errorf("problems: %v", p)
		}
	})
}

// long is how long an answer may take on a busy machine, and short how long the tests wait for silence.
const (
	long  = 30 * time.Second
	short = 200 * time.Millisecond
)

func TestKernelAnswers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", far, "eth0")
		node.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64")
		far.AddAddress("eth0", "192.0.2.2/24", "2001:db8::2/64")
		absent := netip.MustParseAddrPort("192.0.2.3:80")
		ask := func(what string, want bool, addresses ...netip.AddrPort) {
			t.Helper()
			within := long
			if !want {
				within = short
			}
			if got := kernelAnswers(t.Context(), within, addresses...); got != want {
				t.Errorf("%s: %t, want %t", what, got, want)
			}
		}
		for _, host := range []string{"192.0.2.2", "2001:db8::2"} {
			closed := netip.AddrPortFrom(netip.MustParseAddr(host), 81)
			ask("no program listens", true, closed)
			far.Do(func() {
				// It never accepts, as a program that hangs.
				l, err := net.Listen("tcp", fmt.Sprintf("[%s]:82", host))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { l.Close() })
			})
			hung := netip.AddrPortFrom(closed.Addr(), 82)
			ask("a program hangs", true, hung)
			ask("one of two addresses", true, absent, closed)
		}
		ask("no machine has the address", false, absent)
		ask("there is no route", false, netip.MustParseAddrPort("198.51.100.1:80"))
		ask("no address", false)
		far.Output("nft",
			"add table inet t; add chain inet t in { type filter hook input priority 0; }; add rule inet t in tcp dport 83 drop")
		blocked := netip.MustParseAddrPort("192.0.2.2:83")
		ask("one port is blocked", false, blocked)
		ask("another one is not", true, blocked, netip.MustParseAddrPort("192.0.2.2:84"))
		far.SetDown("eth0")
		ask("it is off", false, netip.MustParseAddrPort("192.0.2.2:81"), netip.MustParseAddrPort("[2001:db8::2]:82"))
	})
}

// TestClientOfTheDead: the owner of an address is dead, and no foreign machine is known; a client asks for that
// address. So the survivor, which announces nothing, learns on real links that its own link works, and may take over.
func TestClientOfTheDead(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, client := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "eth0", client, "eth0")
		self.AddAddress("eth0", "192.0.2.1/24")
		client.AddAddress("eth0", "192.0.2.50/24")
		address, dead := netip.MustParseAddr("192.0.2.100"), [6]byte{2, 0x53, 0, 0, 0, 2}

		links := link.New(quiet, func() {})
		r := layer2.New(layer2.Config{
			Log: quiet, Links: links.Links, Gateways: link.Gateways, Changed: func() {}, Refused: func() {},
		})
		background(t, links.Run, r.Run)
		nstest.Until(t, 30*time.Second, "links known", links.Synced)
		r.Set(layer2.Desired{
			Yield: lb.SetOf(address), Owners: lb.MapOf(map[netip.Addr]string{address: "b"}),
			Speakers: map[lb.MAC]bool{lb.MACFrom(self.MAC("eth0")): true, dead: true},
		})
		w := newWireChecker(Config{Asker: r, Links: links.Links, Changed: func() {}}, time.Now)
		w.set(map[string]lb.Member{"b": {Links: []lb.Link{{Name: "eth0", MAC: dead,
			Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}}},
			nil, lb.MapOf(map[netip.Addr]string{address: "b"}), netip.MustParseAddr("192.0.2.1"))
		if got := w.ask("b").Foreign; got != detect.NotAsked {
			t.Errorf("before the client asks, foreign machines: %v", got)
		}
		var got detect.WireAnswer
		nstest.Until(t, 30*time.Second, "the client answers", func() bool {
			client.Send(address)
			got = w.ask("b")
			return got.Foreign == detect.Answered
		})
		if got.Node != detect.Unanswered {
			t.Errorf("the dead node: %v", got.Node)
		}
	})
}
