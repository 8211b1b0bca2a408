//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testControllerRestart kills the leading controller.
func testControllerRestart(t *testing.T, e *env) {
	held := e.service(t, e.app, "leader-held")
	leader, err := e.leader(t.Context())
	must(t, err)
	start := time.Now()
	must(t, e.Kube.CoreV1().Pods(testbed.Namespace).Delete(t.Context(), leader, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	must(t, testbed.Until(t.Context(), time.Minute, "another leader", func(ctx context.Context) error {
		next, err := e.leader(ctx)
		if err == nil && next == leader {
			err = fmt.Errorf("the leader is still %s", leader)
		}
		return err
	}))
	t.Logf("the next leader leads %s after the death of the one before", since(start))
	made := e.service(t, e.app, "leader-new")
	e.served(t, testbed.Client, made)
	e.served(t, testbed.Client, held)
	must(t, e.WaitReady(t.Context()))
	e.sameAddresses(t, e.app.Namespace, "leader-held", held)
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
	e.hops(t, bgp, 1)
	streams := append(e.watch(t, testbed.Client, l2), e.watch(t, testbed.Far, bgp)...)
	var routes []*routeWatch
	for _, router := range []string{testbed.Router1, testbed.Router2} {
		routes = append(routes, e.watchRoutes(t, router))
	}
	start := time.Now()
	for _, node := range e.Cluster.Nodes() {
		e.restartSpeaker(t, node)
	}
	must(t, e.WaitReady(t.Context()))
	e.owned(t, l2, func(string) bool { return true })
	t.Logf("all speakers restarted within %s", since(start))
	recovered(t, streams)
	finish(t, streams[:2], "speaker restarts")
	if failed := finish(t, streams[2:], "speaker restarts"); failed > 0 {
		t.Errorf("%d requests over BGP failed although every route should have stayed", failed)
	}
	for _, w := range routes {
		for _, line := range w.stop(t) {
			for _, a := range bgp {
				if strings.HasPrefix(line, "Deleted "+a.String()) {
					t.Errorf("%s dropped a route: %s", w.router, line)
				}
			}
		}
	}
	e.hops(t, bgp, 1)
	e.sameAddresses(t, e.app.Namespace, "speaker-l2", l2)
	e.sameAddresses(t, e.app.Namespace, "speaker-bgp", bgp)
}

// restartSpeaker deletes a node's speaker and waits for the next one.
func (e *env) restartSpeaker(t *testing.T, node string) {
	t.Helper()
	must(t, e.ReplaceSpeaker(t.Context(), node))
}

// routeWatch collects all changes of a router's routes.
type routeWatch struct {
	router string
	cmd    *exec.Cmd
	cancel context.CancelFunc
	done   chan struct{}
	mu     sync.Mutex
	lines  []string
}

// marker is an unused route: its change shows that a watch works.
var marker = netip.MustParsePrefix("192.0.2.99/32")

// watchRoutes starts to collect the changes of the kernel's routes on a router.
func (e *env) watchRoutes(t *testing.T, router string) *routeWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &routeWatch{router: router, cancel: cancel, done: make(chan struct{})}
	w.cmd = e.Cluster.Command(ctx, router, "ip", "-o", "monitor", "route")
	out, err := w.cmd.StdoutPipe()
	must(t, err)
	must(t, w.cmd.Start())
	go func() {
		defer close(w.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			w.mu.Lock()
			w.lines = append(w.lines, strings.TrimSpace(lines.Text()))
			w.mu.Unlock()
		}
	}()
	t.Cleanup(cancel)
	must(t, testbed.Until(ctx, soon, "the watch of routes", func(ctx context.Context) error {
		for _, verb := range []string{"replace", "del"} {
			if _, err := e.On(ctx, router, "ip", "route", verb, "blackhole", marker.String()); err != nil {
				return err
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.lines) == 0 {
			return fmt.Errorf("it has no output")
		}
		return nil
	}))
	return w
}

// stop ends the watch and returns the changes.
func (w *routeWatch) stop(t *testing.T) []string {
	t.Helper()
	w.cancel()
	<-w.done
	// Its error is that it was killed.
	_ = w.cmd.Wait()
	t.Logf("%s: %d changes of routes", w.router, len(w.lines))
	return w.lines
}
