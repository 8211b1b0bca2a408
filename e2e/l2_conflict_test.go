//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
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

// contested checks the conflicts in a pool's status: a MAC claims all the addresses or,
// with an empty MAC, there is no conflict.
func contested(mac string, addresses []netip.Addr) func(*v1beta1.IPAddressPool) error {
	return func(p *v1beta1.IPAddressPool) error {
		c := meta.FindStatusCondition(p.Status.Conditions, v1beta1.ConditionAddressesFree)
		if mac == "" {
			if c != nil {
				return fmt.Errorf("the condition is %s", c.Message)
			}
			return nil
		}
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != "AddressConflict" {
			return fmt.Errorf("its condition is %+v", c)
		}
		for _, a := range addresses {
			if !strings.Contains(c.Message, a.String()+" is claimed by "+mac) {
				return fmt.Errorf("the condition is %s", c.Message)
			}
		}
		return nil
	}
}

// testConflict gives a Service addresses that a foreign machine already has: speakers do
// not announce them, and the Service, its pool and the SpeakerState name that machine's
// MAC until it releases the addresses.
func testConflict(t *testing.T, e *env) {
	const name = "e2e-conflict"
	addresses := []netip.Addr{netip.MustParseAddr("172.30.0.212"), netip.MustParseAddr("fd00:30::3:1")}
	e.pool(t, name, `addresses: [172.30.0.212, "fd00:30::3:1"]`)
	e.apply(t, object("L2Advertisement", name, `{ipAddressPools: [`+name+`]}`))
	mac, del := e.clientHas(t, addresses)

	e.create(t, e.app, "conflict", pool(name))
	c := e.waitCondition(t, e.app.Namespace, "conflict", v1beta1.ConditionAnnouncedL2, metav1.ConditionFalse,
		"AddressConflict")
	for _, a := range addresses {
		if !strings.Contains(c.Message, a.String()+" ") || !strings.Contains(c.Message, "is in use by "+mac) {
			t.Errorf("the Service's condition is %q, want the MAC %s that claims %s", c.Message, mac, a)
		}
	}
	e.waitPool(t, name, "the conflicts in the pool's status", contested(mac, addresses))
	e.describes(t, []string{"AddressConflict", mac}, "ipaddresspool", name)
	e.describes(t, []string{"Conflicts", mac}, "speakerstates")
	e.why(t, "is in use by "+mac, e.app.Namespace+"/conflict")
	e.why(t, "First: Remove the address from the machine with that MAC, or take it out of the pool",
		e.app.Namespace+"/conflict")
	e.why(t, mac, "pool", name)

	must(t, del())
	e.announced(t, e.app.Namespace, "conflict")
	e.waitPool(t, name, "the end of the conflicts in the pool's status", contested("", nil))
	// Normal Events queue behind the Events of earlier cases, since their rate is limited.
	must(t, testbed.Until(t.Context(), 5*time.Minute,
		"the Event about the end of the conflict", func(ctx context.Context) error {
			out, err := e.Kubectl(ctx, "describe", "ipaddresspool", name)
			if err == nil && !strings.Contains(out, "AddressFree") {
				err = fmt.Errorf("there is none:\n%s", out)
			}
			return err
		}))
	e.served(t, testbed.Client, addresses)
}

// clientHas adds addresses to the client until del is called or the test ends, and returns the client's MAC.
func (e *env) clientHas(t *testing.T, addresses []netip.Addr) (mac string, del func() error) {
	t.Helper()
	own := func(ctx context.Context, verb string) error {
		for _, a := range addresses {
			argv := []string{"ip", "addr", verb, netip.PrefixFrom(a, a.BitLen()).String(), "dev", testbed.LAN}
			if a.Is6() && verb == "add" {
				argv = append(argv, "nodad")
			}
			if _, err := e.On(ctx, testbed.Client, argv...); err != nil {
				return err
			}
		}
		return nil
	}
	must(t, own(t.Context(), "add"))
	t.Cleanup(func() { _ = own(context.Background(), "del") })
	mac, err := e.MAC(t.Context(), testbed.Client)
	must(t, err)
	return mac, func() error { return own(t.Context(), "del") }
}

// testCovered lets a pool cover the addresses of a machine: pods still reach it, and the pool names it.
func testCovered(t *testing.T, e *env) {
	const name = "e2e-covered"
	addresses := []netip.Addr{netip.MustParseAddr("172.30.0.213"), netip.MustParseAddr("fd00:30::3:2")}
	mac, _ := e.clientHas(t, addresses)
	e.pool(t, name, `addresses: [172.30.0.213, "fd00:30::3:2"], autoAssign: false`)
	pods, err := e.AppPods(t.Context(), e.app)
	must(t, err)
	seen := testbed.Until(t.Context(), soon, "the pool in force on all nodes", func(ctx context.Context) error {
		for _, node := range e.workers() {
			out, err := e.On(ctx, node, "nft", "list", "set", "inet", "holdfast", "guarded4")
			if err != nil || !strings.Contains(out, addresses[0].String()) {
				return fmt.Errorf("%s guards %s (%v)", node, out, err)
			}
		}
		return nil
	})
	must(t, seen)
	for i, a := range addresses {
		way := []string{"ip", "route", "replace", pods[0].Status.PodIPs[i].IP, "via", pods[0].Status.HostIPs[i].IP}
		_, err := e.On(t.Context(), testbed.Client, way...)
		must(t, err)
		t.Cleanup(func() {
			way[2] = "del"
			_, _ = e.On(context.Background(), testbed.Client, way...)
		})
		_, err = e.In(t.Context(), &pods[0], "ping", "-c", "3", "-W", "2", a.String())
		must(t, err)
	}
	e.waitPool(t, name, "the machine in the pool's status", contested(mac, addresses))
}

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
	w, err := e.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=" + node})
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
	w, err := e.Watch(t.Context(), testbed.Client, probe.TCP, addresses, "-every", pace.String())
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
		t.Logf("dead endpoint: %s: %d probes failed, the last one %d ms after the plug was pulled", s.Name, s.Failed(),
			last.Milliseconds())
		if last > deadEndpointLimit {
			t.Errorf("%s: a probe failed %s after the plug was pulled", s.Name, last)
		}
	}
	must(t, testbed.Until(t.Context(), soon,
		"attempts that the kernel was made to forget", func(ctx context.Context) error {
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
		if c := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionEndpointsWithdrawn); c == nil ||
			c.Status != metav1.ConditionFalse {
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
	app, _ := e.spread(t, "dead-leader")
	must(t, testbed.Until(t.Context(), 3*time.Minute, "a leader on a worker", func(ctx context.Context) error {
		leader := e.leaderNode(t)
		if slices.Contains(e.workers(), leader) {
			return nil
		}
		e.killLeader(t)
		e.newLeader(t)
		return fmt.Errorf("the leader was on %s", leader)
	}))
	must(t, e.WaitReady(t.Context())) // a standby is there again, even if the leader had to be killed
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
