//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// podWithdrawn is the reason that Holdfast writes to the condition Ready of pods on dead nodes.
	podWithdrawn = "HoldfastNodeUnreachable"
	// kubeletPort is where kubelets listen.
	kubeletPort = 10250
	// deadEndpointLimit is the latest failure of a new connection after a power-off, on a
	// busy machine; the benchmark measures the time on an idle one.
	deadEndpointLimit = 10 * time.Second
	// leaderDeadLimit is the latest that the next leader gives an address, and marks pods on the dead node.
	leaderDeadLimit = 5 * time.Second
)

// spread deploys an application with a pod on every worker, behind a layer 2 Service.
func (e *env) spread(t *testing.T, name string) (testbed.App, string) {
	t.Helper()
	app := e.app
	app.Name, app.Replicas, app.Nodes = name, int32(len(e.workers())), e.workers()
	must(t, e.Deploy(t.Context(), app))
	pods, err := e.AppPods(t.Context(), app)
	must(t, err)
	on := map[string]bool{}
	for _, p := range pods {
		on[p.Spec.NodeName] = true
	}
	if len(on) != len(e.workers()) {
		t.Fatalf("pods of %s are on %v only", name, on)
	}
	addresses := e.service(t, app, name)
	e.served(t, testbed.Client, addresses)
	owner, err := e.WaitOwner(t.Context(), testbed.Client, addresses[0])
	must(t, err)
	return app, owner
}

// leaderNode returns the node that the leading controller runs on.
func (e *env) leaderNode(t *testing.T) string {
	t.Helper()
	leader, err := e.leader(t.Context())
	must(t, err)
	pod, err := e.Kube.CoreV1().Pods(testbed.Namespace).Get(t.Context(), leader, metav1.GetOptions{})
	must(t, err)
	return pod.Spec.NodeName
}

// marked returns the pods of an application that Holdfast has marked not ready, with their nodes.
func (e *env) marked(ctx context.Context, app testbed.App) ([]string, error) {
	pods, err := e.AppPods(ctx, app)
	var out []string
	for _, p := range pods {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Reason == podWithdrawn {
				out = append(out, p.Name+" on "+p.Spec.NodeName)
			}
		}
	}
	return out, err
}

// renewed waits until a node's kubelet renews its Lease.
func (e *env) renewed(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	w, err := e.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + node})
	if err != nil {
		return err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Modified {
			return nil
		}
	}
	return fmt.Errorf("wait %s for the next renewal of the Lease of %s: none came", soon, node)
}

// testDeadEndpoint powers off a node that has one of three endpoints, but not the address.
func testDeadEndpoint(t *testing.T, e *env) {
	app, owner := e.spread(t, "dead-endpoint")
	leader := e.leaderNode(t)
	i := slices.IndexFunc(e.workers(), func(n string) bool { return n != owner && n != leader })
	victim := e.workers()[i]
	addresses, err := e.WaitAddresses(t.Context(), app.Namespace, app.Name, 2)
	must(t, err)
	w, err := e.Watch(t.Context(), testbed.Client, probe.TCP, addresses)
	must(t, err)
	t.Cleanup(func() { e.ensureOn(t, victim) })

	const forgotten = "holdfast_stranded_attempts_forgotten_total"
	before, err := e.Metrics(t.Context(), owner)
	must(t, err)
	// The worst moment: the node has just said that it lives.
	must(t, e.renewed(t.Context(), victim))
	off := time.Now()
	must(t, e.Cluster.PowerOff(t.Context(), victim))
	must(t, testbed.Until(t.Context(), soon, "a mark on the dead pod", func(ctx context.Context) error {
		got, err := e.marked(ctx, app)
		if err == nil && (len(got) != 1 || !strings.HasSuffix(got[0], " on "+victim)) {
			err = fmt.Errorf("marked are %v", got)
		}
		return err
	}))
	t.Logf("the pod on %s is marked %s after the plug was pulled, as seen from outside", victim, since(off))
	must(t, w.Recovered(t.Context(), soon))
	seen, err := w.Stop()
	must(t, err)
	for _, s := range seen {
		last := s.LastFailed().Sub(off)
		t.Logf("dead endpoint: %s: %d probes failed, the last one %d ms after the plug was pulled", s.Name, s.Failed(), last.Milliseconds())
		if last > deadEndpointLimit {
			t.Errorf("%s: a probe failed %s after the plug was pulled", s.Name, last)
		}
	}
	must(t, testbed.Until(t.Context(), soon, "attempts that the kernel was made to forget", func(ctx context.Context) error {
		after, err := e.Metrics(ctx, owner)
		if err == nil && after[forgotten] == before[forgotten] {
			err = fmt.Errorf("%s made its kernel forget none", owner)
		}
		return err
	}))
	e.describes(t, []string{"NodeUnreachable"}, "node", victim)
	e.describes(t, []string{"EndpointsWithdrawn"}, "service", "-n", app.Namespace, app.Name)

	on := time.Now()
	must(t, e.Cluster.PowerOn(t.Context(), victim))
	must(t, e.WaitNode(t.Context(), victim, on))
	until(t, e.Resource(testbed.SpeakerStates), victim, "the end of the mark", func(s *v1beta1.SpeakerState) error {
		if c := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionEndpointsWithdrawn); c == nil || c.Status != metav1.ConditionFalse {
			return fmt.Errorf("the condition is %+v", c)
		}
		return nil
	})
	must(t, e.WaitReady(t.Context()))
	must(t, e.Deploy(t.Context(), app)) // waits until all its pods are ready
	got, err := e.marked(t.Context(), app)
	must(t, err)
	if len(got) > 0 {
		t.Errorf("pods are still marked: %v", got)
	}
}

// testDeadLeader powers off the node of the leading controller, which has an endpoint too but not the address. The next
// leader marks that endpoint, and gives an address to a Service that is new.
func testDeadLeader(t *testing.T, e *env) {
	app, owner := e.spread(t, "dead-leader")
	must(t, testbed.Until(t.Context(), 3*time.Minute, "a leader on a worker without the address", func(ctx context.Context) error {
		leader := e.leaderNode(t)
		if slices.Contains(but(e.workers(), owner), leader) {
			return nil
		}
		e.killLeader(t)
		e.newLeader(t)
		return fmt.Errorf("the leader was on %s, the owner is %s", leader, owner)
	}))
	must(t, e.WaitReady(t.Context())) // a standby is there again, also if the leader had to be killed
	victim := e.leaderNode(t)
	t.Cleanup(func() { e.ensureOn(t, victim) })
	off := time.Now()
	must(t, e.Cluster.PowerOff(t.Context(), victim))
	e.service(t, e.app, "dead-leader-next")
	if took := time.Since(off); took > leaderDeadLimit {
		t.Errorf("a new Service has addresses %s after the plug was pulled", took)
	} else {
		t.Logf("a new Service has addresses %s after the plug was pulled", took)
	}
	must(t, testbed.Until(t.Context(), soon, "a mark on the dead pod", func(ctx context.Context) error {
		got, err := e.marked(ctx, app)
		if err == nil && !slices.ContainsFunc(got, func(pod string) bool { return strings.HasSuffix(pod, " on "+victim) }) {
			err = fmt.Errorf("marked are %v", got)
		}
		return err
	}))
	if took := time.Since(off); took > leaderDeadLimit {
		t.Errorf("the pod on %s is marked %s after the plug was pulled", victim, took)
	} else {
		t.Logf("the pod on %s is marked %s after the plug was pulled", victim, took)
	}
	on := time.Now()
	must(t, e.Cluster.PowerOn(t.Context(), victim))
	must(t, e.WaitNode(t.Context(), victim, on))
	must(t, e.WaitReady(t.Context()))
	must(t, e.Deploy(t.Context(), app)) // waits until all its pods are ready
}

// testLivingEndpoint blocks all traffic by which others see that a node lives: most speakers
// vote that it is unreachable, but its own Lease shows that it lives.
func testLivingEndpoint(t *testing.T, e *env) {
	app, owner := e.spread(t, "living-endpoint")
	victim := but(e.workers(), owner)[0]
	undo(t, e.Cluster.Heal)
	must(t, e.Cluster.Block(t.Context(), victim, membersPort, heartbeatPort, kubeletPort))
	until(t, e.Resource(testbed.SpeakerStates), owner, "votes against "+victim, func(s *v1beta1.SpeakerState) error {
		if !slices.ContainsFunc(s.Status.Unreachable, func(n v1beta1.SilentNode) bool { return n.Node == victim }) {
			return fmt.Errorf("%s calls unreachable %v", owner, s.Status.Unreachable)
		}
		return nil
	})
	// Long enough for several renewals of kubelets' Leases.
	must(t, testbed.Holds(t.Context(), 12*time.Second, func(ctx context.Context) error {
		got, err := e.marked(ctx, app)
		if err == nil && len(got) > 0 {
			err = fmt.Errorf("marked are %v, which live", got)
		}
		return err
	}))
	must(t, e.Cluster.Heal(t.Context()))
	must(t, e.WaitReady(t.Context()))
}
