//go:build !race

package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

const peersPath = "/apis/holdfast.dev/v1beta1/bgppeers"

// TestAwaitedSessions: a speaker that starts, crashes and starts again waits for the sessions of the first one for as long as their
// peers select the node, though it cannot even try to open them, and until the node is annotated.
//
// Trap: a build that cannot read a peer, or its password, has no such session, and is ready.
func TestAwaitedSessions(t *testing.T) {
	k8s.LogTo(slog.New(slog.DiscardHandler))
	utilruntime.ErrorHandlers = nil // as in TestAPIServerAway
	nstest.Run(t, func(t *testing.T) { synctest.Test(t, testAwaitedSessions) })
}

func testAwaitedSessions(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var group errgroup.Group
	defer func() {
		stop()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	}()
	c := newFleet(t, "w1")
	node := func(labels, annotations map[string]string) {
		c.api.put("/api/v1/nodes", "w1", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", Labels: labels, Annotations: annotations}})
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
	c.api.put(statesPath, "w1", &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Status: v1beta1.SpeakerStateStatus{Sessions: sessions}})
	peer("r1", func(s *v1beta1.BGPPeerSpec) { s.PasswordSecret = &v1beta1.SecretReference{Name: "away"} })
	peer("r2", func(s *v1beta1.BGPPeerSpec) {
		s.NodeSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"rack": "a"}}}
	})
	peer("r3", func(s *v1beta1.BGPPeerSpec) { s.PeerASN = 0 })
	peer("r4", func(*v1beta1.BGPPeerSpec) {})
	node(map[string]string{"rack": "a"}, nil)

	expect := func(when, want string, awaited ...string) {
		t.Helper()
		err := c.speakers["w1"].awaitSessions()
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
		c.start(ctx, &group, "w1")
		time.Sleep(20 * time.Second)
		expect("started", "r1, r2, r3", "r1", "r2", "r3")
		c.speakers["w1"].stop()
		synctest.Wait()
	}
	c.start(ctx, &group, "w1")
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
