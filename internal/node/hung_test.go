//go:build !race

package node

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// phases returns what a speaker does with its addresses, sorted.
func (n *node) phases() string {
	var out []string
	for _, a := range n.sinks.Layer2.State().Addresses {
		out = append(out, a.Phase)
	}
	return strings.Join(out, ", ")
}

// TestHungSpeaker: real speakers but for membership and sockets. The run that hung announces nothing when it ends; the
// next one leaves to the others what they took, and the one after that is as ever.
func TestHungSpeaker(t *testing.T) {
	for _, tt := range []struct {
		nodes  []string
		during string
	}{
		{[]string{"w1"}, "announced, announced"},
		{[]string{"w1", "w2"}, "handing over"},
	} {
		inBubble(t, func(t *testing.T) { testHung(t, tt.during, tt.nodes...) })
	}
}

// fullLog is a log whose lines nothing takes until it is closed. The handlers of slog wait for each other with a mutex,
// which a bubble of synctest takes for work.
type fullLog chan struct{}

func (f fullLog) Handle(context.Context, slog.Record) error {
	<-f
	return nil
}

func (f fullLog) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (f fullLog) WithAttrs([]slog.Attr) slog.Handler           { return f }
func (f fullLog) WithGroup(string) slog.Handler                { return f }

// TestFullLog has a run of the plan loop hang in the log, which takes no more lines. Other nodes get the addresses.
//
// Trap: what notices the run that hangs logs that first, and hangs too.
func TestFullLog(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newFleet(t, "w1", "w2")
		for _, a := range []string{"192.0.2.1", "192.0.2.2"} {
			// so no node probes
			c.serve(a, metav1.Condition{Type: v1beta1.ConditionAnnouncers, Status: metav1.ConditionTrue, Message: a + "=w9"})
		}
		holds := false
		c.hangs = func(w *Loop) {
			if w.node == "w1" && holds {
				w.log.Info("something changed")
			}
		}
		for _, name := range []string{"w1", "w2"} {
			c.start(name)
		}
		time.Sleep(10 * time.Second)
		w1 := c.speakers["w1"]
		if before := w1.phases(); !strings.Contains(before, "announced") {
			t.Fatalf("w1 has nothing, so nothing is tested: %q", before)
		}
		full, log := make(fullLog), w1.log
		w1.log, holds = slog.New(full), true
		w1.loop.Kick()
		time.Sleep(12 * time.Second)
		if got := w1.phases(); !strings.Contains(got, "offered") {
			t.Errorf("the addresses are not offered: %q", got)
		}
		holds = false
		close(full)
		w1.log = log
		time.Sleep(10 * time.Second)
		if got := w1.phases(); !strings.Contains(got, "announced") {
			t.Errorf("when the log works again w1 has %q", got)
		}
	})
}

// testHung has w1 hang. During is what it does with its address by the first plan after that.
func testHung(t *testing.T, during string, nodes ...string) {
	c := newFleet(t, nodes...)
	for _, a := range []string{"192.0.2.1", "192.0.2.2"} {
		// so no node probes
		c.serve(a, metav1.Condition{Type: v1beta1.ConditionAnnouncers, Status: metav1.ConditionTrue, Message: a + "=w9"})
	}
	var plans []string
	hold := make(chan struct{})
	var holds bool
	c.hangs = func(w *Loop) {
		if w.node != "w1" || !holds {
			return
		}
		if !w.stops.hung.Load() {
			<-hold
		}
		plans = append(plans, c.speakers["w1"].phases())
	}
	for _, name := range nodes {
		c.start(name)
	}
	time.Sleep(10 * time.Second)
	w1 := c.speakers["w1"]
	before := w1.phases()
	if !strings.Contains(before, "announced") {
		t.Fatalf("w1 has nothing, so nothing is tested: %q", before)
	}
	holds = true
	w1.loop.Kick()
	time.Sleep(9 * time.Second)
	if got := w1.phases(); got != before {
		t.Errorf("after nine seconds: %s, want %s", got, before)
	}
	time.Sleep(3 * time.Second)
	offered := strings.ReplaceAll(before, "announced", "offered to others")
	if got := w1.phases(); got != offered {
		t.Errorf("after twelve seconds: %s, want %s", got, offered)
	}
	if err := w1.stops.hang.alive(); err != nil {
		t.Errorf("w1 is to be restarted although no other node was heard: %v", err)
	}
	for _, n := range c.speakers {
		n.loop.Kick()
	}
	time.Sleep(time.Second)
	if len(nodes) > 1 {
		if got := c.speakers["w2"].phases(); got != "announced, announced" {
			t.Errorf("w2: %s", got)
		}
	}
	close(hold)
	time.Sleep(10 * time.Second)
	if want := []string{offered, offered, during}; len(plans) < 3 || !slices.Equal(plans[:3], want) {
		t.Errorf("when its runs go on: %v, want %v", plans, want)
	}
	if got := w1.phases(); got != before || w1.stops.hung.Load() || w1.stops.hang.alive() != nil {
		t.Errorf("in the end: %s, want %s; %v", got, before, w1.stops.hang.alive())
	}
}

const peersPath = "/apis/holdfast.dev/v1beta1/bgppeers"

// TestAwaitedSessions: a speaker that starts, crashes and starts again waits for the sessions of the first one for as
// long as their peers select the node, though it cannot even try to open them, and until the node is annotated.
//
// Trap: a build that cannot read a peer, or its password, has no such session, and is ready.
func TestAwaitedSessions(t *testing.T) {
	inBubble(t, testAwaitedSessions)
}

func testAwaitedSessions(t *testing.T) {
	c := newFleet(t, "w1")
	node := func(labels, annotations map[string]string) {
		c.api.put("/api/v1/nodes", "w1",
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", Labels: labels, Annotations: annotations}})
		time.Sleep(time.Second)
	}
	peer := func(name string, change func(*v1beta1.BGPPeerSpec)) {
		spec := v1beta1.BGPPeerSpec{MyASN: 64600, PeerASN: 64512, PeerAddress: "198.51.100." + name[1:]}
		change(&spec)
		c.api.put(peersPath, name, &v1beta1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
	}
	var sessions []v1beta1.SessionState
	for name, state := range map[string]string{
		"r1": v1beta1.SessionStateEstablished, "r2": v1beta1.SessionStateEstablished, "r3": v1beta1.SessionStateEstablished,
		"r4": v1beta1.SessionStateDown, "gone": v1beta1.SessionStateEstablished,
	} {
		sessions = append(sessions, v1beta1.SessionState{Peer: name, State: state})
	}
	c.api.put(statesPath, "w1",
		&v1beta1.SpeakerState{
			ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Status: v1beta1.SpeakerStateStatus{Sessions: sessions},
		})
	peer("r1", func(s *v1beta1.BGPPeerSpec) { s.PasswordSecret = &v1beta1.SecretReference{Name: "away"} })
	peer("r2", func(s *v1beta1.BGPPeerSpec) {
		s.NodeSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"rack": "a"}}}
	})
	peer("r3", func(s *v1beta1.BGPPeerSpec) { s.PeerASN = 0 })
	peer("r4", func(*v1beta1.BGPPeerSpec) {})
	node(map[string]string{"rack": "a"}, nil)

	expect := func(when, want string, awaited ...string) {
		t.Helper()
		w := c.speakers["w1"]
		err := w.sinks.Report.Ready(w.sources.Cluster.ReadyWithoutSessions("w1"))
		if (err != nil) != (want != "") || err != nil && !strings.HasPrefix(err.Error(), "no BGP session with "+want+",") {
			t.Errorf("%s: %v, want %q", when, err, want)
		}
		var state v1beta1.SpeakerState
		c.api.get(statesPath, "w1", &state)
		var got []string
		for _, s := range state.Status.Sessions {
			if s.Awaited {
				got = append(got, s.Peer)
			}
		}
		if slices.Sort(got); !slices.Equal(got, awaited) {
			t.Errorf("%s: the SpeakerState says that %v are awaited, want %v", when, got, awaited)
		}
	}
	for range 3 {
		c.start("w1")
		time.Sleep(20 * time.Second)
		expect("started", "r1, r2, r3", "r1", "r2", "r3")
		c.speakers["w1"].stop()
		synctest.Wait()
	}
	c.start("w1")
	time.Sleep(20 * time.Second)
	node(nil, nil)
	time.Sleep(20 * time.Second)
	expect("one selects other nodes", "r1, r3", "r1", "r3")
	c.api.put(peersPath, "r1", nil)
	time.Sleep(time.Hour)
	expect("one is deleted", "r3", "r3")
	node(nil, map[string]string{v1beta1.AnnotationReadyWithoutSessions: "true"})
	expect("the node is annotated", "", "r3")
	node(nil, nil)
	expect("it was ready", "", "r3")
}

// TestMarkRemoved: a speaker that has withdrawn everything announces nothing when the uninstall mark is removed, but
// ends, so that a new process can announce.
func TestMarkRemoved(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const list, key, soon = "/apis/apps/v1/daemonsets", "holdfast/speaker", 30 * time.Second
		api := newAPIServer(t)
		mark := func(value string) {
			api.put(list, key, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{
				Namespace: "holdfast", Name: "speaker", Annotations: map[string]string{k8s.UninstallMark: value},
			}})
		}
		mark("true")
		w := newTestLoop(noLinks)
		w.sources.Links = link.New(w.log, func() {})
		w.loop = daemon.NewLoop(daemon.LoopConfig{Log: w.log})
		w.atCluster(t, api.config())
		background(t, w.sources.Cluster.Run, w.sources.Links.Run)
		nstest.Until(t, soon, "all is known", func() bool { return w.sources.Cluster.Synced() && w.sources.Links.Synced() })
		sync := func() {
			t.Helper()
			_, err := w.sync(t.Context())
			must(t, err)
		}
		sync()
		if !w.stops.withdrawn.Load() || len(w.stops.markRemoved) > 0 {
			t.Fatalf("marked: withdrawn %t, ended %d times", w.stops.withdrawn.Load(), len(w.stops.markRemoved))
		}
		mark("false")
		nstest.Until(t, soon, "the mark is off", func() bool { return !w.sources.Cluster.Uninstalling() })
		sync()
		if len(w.stops.markRemoved) == 0 {
			t.Error("the mark is off, and it goes on")
		}
		if ok, _ := w.sinks.Filter.Table.Enforced(); ok {
			t.Error("there is a filter again")
		}
	})
}
