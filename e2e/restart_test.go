//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testSpeakerReady replaces a speaker whose node can open no BGP session any more: it is not ready, says why, and
// serves all the same. An annotation makes it ready.
//
// Trap: speakers are ready before their sessions are, so that an update takes the routes of one node after the other.
func testSpeakerReady(t *testing.T, e *env) {
	node := e.workers()[0]
	bgp := e.service(t, e.app, "speaker-ready", routed)
	e.hops(t, bgp, len(e.workers()))
	_, err := e.On(t.Context(), node, "nft", `add table inet e2e-no-sessions
		add chain inet e2e-no-sessions in { type filter hook input priority -300; }
		add chain inet e2e-no-sessions out { type filter hook output priority -300; }
		add rule inet e2e-no-sessions in tcp dport 179 tcp flags & (syn | ack) == syn drop
		add rule inet e2e-no-sessions out tcp dport 179 tcp flags & (syn | ack) == syn drop`)
	must(t, err)
	annotate := func(ctx context.Context, value string) error {
		_, err := e.Kubectl(ctx, "annotate", "node", node, "holdfast.dev/ready-without-sessions"+value)
		return err
	}
	sessions := func(ctx context.Context) error {
		return e.do(ctx, node, "nft", "add table inet e2e-no-sessions; delete table inet e2e-no-sessions")
	}
	undo(t, func(ctx context.Context) error { return errors.Join(sessions(ctx), annotate(ctx, "-")) })
	replaced := make(chan error, 1)
	go func() { replaced <- e.ReplaceSpeaker(t.Context(), node) }()
	must(t, testbed.Until(t.Context(), time.Minute, "awaited sessions", func(ctx context.Context) error {
		out, err := e.Kubectl(ctx, "get", "speakerstate", node, "-o", `jsonpath={.status.sessions[?(@.awaited)].peer}`)
		if err == nil && len(strings.Fields(out)) < 2 {
			err = fmt.Errorf("only %q", out)
		}
		return err
	}))
	out, err := e.On(t.Context(), node, "curl", "-s", "http://127.0.0.1:9218/readyz")
	must(t, err)
	if want := "which the speaker before this one had"; !strings.Contains(out, want) {
		t.Errorf("/readyz says %q, not %q", out, want)
	}
	e.why(t, "find out why a speaker is not ready: kubectl -n holdfast-system describe pod -l ",
		e.app.Namespace+"/speaker-ready")
	e.served(t, testbed.Far, bgp)
	select {
	case err := <-replaced:
		t.Fatalf("ready without its sessions: %v", err)
	default:
	}
	must(t, annotate(t.Context(), "=true"))
	must(t, <-replaced)
	must(t, sessions(t.Context()))
	e.hops(t, bgp, len(e.workers()))
}

// leader returns the name of the leading controller's pod.
func (e *env) leader(ctx context.Context) (string, error) {
	lease, err := e.Kube.CoordinationV1().Leases(testbed.Namespace).Get(ctx, testbed.Controller, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("find leader: %w", err)
	}
	if lease.Spec.HolderIdentity == nil {
		return "", fmt.Errorf("find leader: there is none")
	}
	name, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	return name, nil
}

// testSpeakerRestart restarts all speakers, one after the other, as an upgrade does.
func testSpeakerRestart(t *testing.T, e *env) {
	l2 := e.service(t, e.app, "speaker-l2")
	// One next hop only, so that no other node's route hides a gap.
	single := e.app
	single.Name, single.Replicas = "single", 1
	bgp := e.service(t, single, "speaker-bgp", routed, local)
	must(t, e.Deploy(t.Context(), single))
	e.served(t, testbed.Client, l2)
	e.served(t, testbed.Far, bgp)
	// No other node may own its addresses: one stands in for it.
	alone := e.service(t, single, "speaker-alone", local)
	e.served(t, testbed.Client, alone)
	e.hops(t, bgp, 1)
	streams := append(e.watch(t, testbed.Client, l2), e.watch(t, testbed.Far, bgp)...)
	lonely := e.watch(t, testbed.Client, alone)
	warm := e.forget(t, alone)
	routes := e.watchRoutes(t)
	start := time.Now()
	for _, node := range e.Cluster.Nodes() {
		e.restartSpeaker(t, node)
	}
	must(t, e.WaitReady(t.Context()))
	e.owned(t, l2, func(string) bool { return true })
	t.Logf("all speakers restarted within %s", since(start))
	warm()
	recovered(t, slices.Concat(streams, lonely))
	finish(t, streams[:2], "speaker restarts")
	for _, w := range lonely {
		results, err := w.stream.Stop()
		must(t, err)
		logOutages(t, "speaker restarts, the only endpoint's node, "+w.name, results)
		// A lost question is repeated after a second.
		if longest, some := probe.Longest(probe.Outages(results)); some && longest.Length() > 1500*time.Millisecond {
			t.Errorf("who had to ask for the address got no answer for %s", longest.Length())
		}
	}
	if failed := finish(t, streams[2:], "speaker restarts"); failed > 0 {
		t.Errorf("%d requests over BGP failed although every route should have stayed", failed)
	}
	for _, w := range routes {
		for _, c := range w.Stop() {
			if len(c.Hops) == 0 && slices.Contains(bgp, c.Prefix.Addr()) {
				t.Errorf("%s dropped the route to %s", w.Router, c.Prefix)
			}
		}
	}
	e.hops(t, bgp, 1)
	e.sameAddresses(t, e.app.Namespace, "speaker-l2", l2)
	e.sameAddresses(t, e.app.Namespace, "speaker-bgp", bgp)
}

// forget deletes the client's neighbour entries for addresses again and again, until the function is called.
func (e *env) forget(t *testing.T, addresses []netip.Addr) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			for _, a := range addresses {
				// There is none while no node answers.
				_, _ = e.On(ctx, testbed.Client, "ip", "neigh", "del", a.String(), "dev", testbed.LAN)
			}
			_ = testbed.Holds(ctx, 200*time.Millisecond, func(context.Context) error { return nil })
		}
	})
	stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	t.Cleanup(stop)
	return stop
}

// restartSpeaker deletes a node's speaker and waits for the next one.
func (e *env) restartSpeaker(t *testing.T, node string) {
	t.Helper()
	must(t, e.ReplaceSpeaker(t.Context(), node))
}
