//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// testExcludedNode excludes nodes from external traffic, in two ways.
func testExcludedNode(t *testing.T, e *env) {
	l2 := e.service(t, e.app, "excluded-l2")
	bgp := e.service(t, e.app, "excluded-bgp", routed)
	e.served(t, testbed.Client, l2)
	e.hops(t, bgp, len(e.workers()))
	nodes := e.Kube.CoreV1().Nodes()
	label := func(ctx context.Context, node string, on bool) error {
		value := any(nil)
		if on {
			value = ""
		}
		patch, err := json.Marshal(
			map[string]any{"metadata": map[string]any{"labels": map[string]any{corev1.LabelNodeExcludeBalancers: value}}},
		)
		if err != nil {
			return err
		}
		_, err = nodes.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	condition := func(ctx context.Context, node string, on bool) error {
		status := corev1.ConditionFalse
		if on {
			status = corev1.ConditionTrue
		}
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
			Type: corev1.NodeNetworkUnavailable, Status: status, Reason: "Test", LastTransitionTime: metav1.Now(),
			LastHeartbeatTime: metav1.Now(),
		}}}})
		if err != nil {
			return err
		}
		_, err = nodes.Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	}
	for name, set := range map[string]func(context.Context, string, bool) error{
		"label": label, "NetworkUnavailable": condition,
	} {
		t.Run(name, func(t *testing.T) {
			owner, err := e.WaitOwner(t.Context(), testbed.Client, l2[0])
			must(t, err)
			undo(t, func(ctx context.Context) error { return set(ctx, owner, false) })
			must(t, set(t.Context(), owner, true))
			e.owned(t, l2, func(node string) bool { return node != owner })
			e.hops(t, bgp, len(e.workers())-1)
			e.served(t, testbed.Client, l2)
			must(t, set(t.Context(), owner, false))
			e.owned(t, l2, func(node string) bool { return node == owner })
			e.hops(t, bgp, len(e.workers()))
		})
	}

	// A network plugin that fails everywhere may set it on all nodes.
	t.Run("NetworkUnavailable on all nodes", func(t *testing.T) {
		owner, err := e.WaitOwner(t.Context(), testbed.Client, l2[0])
		must(t, err)
		streams := append(e.watch(t, testbed.Client, l2), e.watch(t, testbed.Far, bgp)...)
		onAll := func(ctx context.Context, on bool) error {
			var errs []error
			for _, node := range e.Cluster.Nodes() {
				errs = append(errs, condition(ctx, node, on))
			}
			return errors.Join(errs...)
		}
		undo(t, func(ctx context.Context) error { return onAll(ctx, false) })
		must(t, onAll(t.Context(), true))
		e.stays(t, l2[0], owner, bgp)
		must(t, onAll(t.Context(), false))
		e.stays(t, l2[0], owner, bgp)
		finish(t, streams, "NetworkUnavailable on all nodes")
	})
}

// owned waits until an accepted node answers for each address.
func (e *env) owned(t *testing.T, addresses []netip.Addr, right func(node string) bool) {
	t.Helper()
	for _, a := range addresses {
		must(t, testbed.Until(t.Context(), soon, "another owner of "+a.String(), func(ctx context.Context) error {
			owner, err := e.WaitOwner(ctx, testbed.Client, a)
			if err == nil && !right(owner) {
				err = fmt.Errorf("it is %s", owner)
			}
			return err
		}))
	}
}

// watched is an address that the test probes during an event.
type watched struct {
	name   string
	stream *testbed.Stream
}

// pace is the time between the probes of an event. Several faster streams take most of two cores, and nodes on the same
// cores then miss each other's heartbeats.
const pace = 20 * time.Millisecond

// watch probes addresses from a host, and waits until all of them answer.
func (e *env) watch(t *testing.T, host string, addresses []netip.Addr) []watched {
	t.Helper()
	var out []watched
	for _, a := range addresses {
		s, err := e.Probe(t.Context(), host, probe.TCP, a, "-every", pace.String())
		must(t, err)
		must(t, s.WaitGood(t.Context(), soon, time.Now(), 50))
		out = append(out, watched{fmt.Sprintf("%s from %s", family(a), host), s})
	}
	return out
}

// recovered waits until every address answers steadily.
func recovered(t *testing.T, streams []watched) {
	t.Helper()
	for _, w := range streams {
		must(t, w.stream.WaitGood(t.Context(), time.Minute, time.Now(), 100))
	}
}

// finish stops the probes, logs their outages, and returns the number of failed probes.
func finish(t *testing.T, streams []watched, during string) (failed int) {
	t.Helper()
	for _, w := range streams {
		results, err := w.stream.Stop()
		must(t, err)
		failed += logOutages(t, during+", "+w.name, results)
	}
	return failed
}

// maxReturnFailures is how many requests may fail when a node returns.
const maxReturnFailures = 5

// testNodeLoss powers off the node that owns an address, and powers it on again.
func testNodeLoss(t *testing.T, e *env) {
	must(t, e.Calm(t.Context())) // a node of an earlier case may be about to take its addresses back
	app := e.app
	app.Name = "loss"
	l2 := e.service(t, app, "loss-l2")
	bgp := e.service(t, app, "loss-bgp", routed)
	app.Replicas, app.Nodes = 1, nil
	must(t, e.Deploy(t.Context(), app))
	owner, err := e.WaitOwner(t.Context(), testbed.Client, l2[0])
	must(t, err)
	// No pod on the node: its dead endpoints would distort the figures for most of a minute.
	app.Nodes = but(e.workers(), owner)
	app.Replicas = int32(len(app.Nodes))
	must(t, e.Deploy(t.Context(), app))
	e.served(t, testbed.Client, l2)
	e.served(t, testbed.Far, bgp)
	e.hops(t, bgp, len(e.workers()))

	streams := append(e.watch(t, testbed.Client, l2), e.watch(t, testbed.Far, bgp[:1])...)
	off := time.Now()
	must(t, e.Cluster.PowerOff(t.Context(), owner))
	t.Cleanup(func() { e.ensureOn(t, owner) })
	e.hops(t, bgp, len(e.workers())-1)
	t.Logf("routers dropped the dead node's routes after %s", since(off))
	recovered(t, streams)
	finish(t, streams, "node loss")
	e.owned(t, l2, func(node string) bool { return node != owner })

	streams = append(e.watch(t, testbed.Client, l2), e.watch(t, testbed.Far, bgp[:1])...)
	on := time.Now()
	must(t, e.Cluster.PowerOn(t.Context(), owner))
	must(t, e.WaitNode(t.Context(), owner, on))
	e.hops(t, bgp, len(e.workers()))
	t.Logf("routers have the node's routes again after %s", since(on))
	must(t, e.WaitReady(t.Context()))
	must(t, e.Calm(t.Context()))
	e.owned(t, l2, func(node string) bool { return node == owner })
	t.Logf("the node owns its addresses again after %s", since(on))
	recovered(t, streams)
	// A request may be under way when a router gets the node's route. A node that announces too early loses hundreds.
	if failed := finish(t, streams, "node return"); failed > maxReturnFailures {
		t.Errorf("%d requests failed when the node returned, want %d at most", failed, maxReturnFailures)
	}
	e.sameAddresses(t, app.Namespace, "loss-l2", l2)
	e.sameAddresses(t, app.Namespace, "loss-bgp", bgp)
}

// ensureOn powers on the nodes that are off after a test.
func (e *env) ensureOn(t *testing.T, nodes ...string) {
	ctx, start := context.Background(), time.Now()
	off := slices.DeleteFunc(slices.Clone(nodes), func(node string) bool {
		_, err := e.On(ctx, node, "true")
		return err == nil
	})
	var errs []error
	for _, node := range off {
		errs = append(errs, e.Cluster.PowerOn(ctx, node))
	}
	if len(off) > 0 && errors.Join(errs...) == nil {
		for _, node := range off {
			errs = append(errs, e.WaitNode(ctx, node, start))
		}
		errs = append(errs, e.WaitReady(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// sameAddresses checks that the addresses of a Service have not changed.
func (e *env) sameAddresses(t *testing.T, namespace, name string, want []netip.Addr) {
	t.Helper()
	got, err := e.WaitAddresses(t.Context(), namespace, name, len(want))
	must(t, err)
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("Service %s has %v, had %v", name, got, want)
		}
	}
}

// Paths of kube-proxy's kubeconfig on a node of the lab, in place and hidden by a test.
const (
	proxyConfig  = "/run/lab/pki/kube-proxy.kubeconfig"
	proxyHidden  = proxyConfig + ".hidden"
	nodeSelector = "holdfast.dev/node-selector"
)

// bootHold is how long a node without kube-proxy is watched: less than speakers wait where no kube-proxy listens.
const bootHold = 10 * time.Second

// problem waits until the speaker of a node reports a number of problems with a reason.
func (e *env) problem(t *testing.T, node, reason string, want float64) {
	t.Helper()
	must(t, testbed.Until(t.Context(), time.Minute,
		fmt.Sprintf("%v problems %s of %s", want, reason, node), func(ctx context.Context) error {
			return e.hasProblem(ctx, node, reason, want)
		}))
}

func (e *env) hasProblem(ctx context.Context, node, reason string, want float64) error {
	m, err := e.Metrics(ctx, node)
	if err != nil {
		return err
	}
	got, known := m[fmt.Sprintf("holdfast_problems{kind=%q,reason=%q}", "Node", reason)]
	if !known || got != want {
		return fmt.Errorf("there are %v", got)
	}
	return nil
}

// speakerEnv gives the speaker of one node environment variables for the duration of the test. No other speaker
// restarts.
func (e *env) speakerEnv(t *testing.T, node string, values map[string]string) {
	t.Helper()
	patch := func(ctx context.Context, text string) error {
		_, err := e.Kube.AppsV1().DaemonSets(testbed.Namespace).Patch(ctx, testbed.Speaker, types.StrategicMergePatchType,
			[]byte(text), metav1.PatchOptions{})
		return err
	}
	var set, unset []map[string]string
	for name, value := range values {
		set = append(set, map[string]string{"name": name, "value": value})
		unset = append(unset, map[string]string{"name": name, "$patch": "delete"})
	}
	replace := func(ctx context.Context, env []map[string]string) error {
		list, err := json.Marshal(env)
		if err != nil {
			return err
		}
		return errors.Join(patch(ctx, `{"spec":{"template":{"spec":{"containers":[{"name":"speaker","env":`+string(list)+
			`}]}}}}`), e.ReplaceSpeaker(ctx, node))
	}
	undo(t, func(ctx context.Context) error {
		return errors.Join(replace(ctx, unset), patch(ctx, `{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}`),
			e.WaitReady(ctx))
	})
	// With OnDelete the other speakers keep their pods, which the template matches again afterwards.
	must(t, patch(t.Context(), `{"spec":{"updateStrategy":{"$retainKeys":["type"],"type":"OnDelete"}}}`))
	must(t, replace(t.Context(), set))
}

// takePodRoutes takes the routes to other nodes' pods from a node, and returns what puts them back.
func (e *env) takePodRoutes(t *testing.T, node string) (restore func(context.Context) error) {
	t.Helper()
	var routes []string
	for _, list := range [][]string{
		{"ip", "route", "show", "root", "10.244.0.0/16"}, {"ip", "-6", "route", "show", "root", "fd00:244::/32"},
	} {
		out, err := e.On(t.Context(), node, list...)
		must(t, err)
		for line := range strings.Lines(out) {
			if fields := strings.Fields(line); slices.Contains(fields, "via") { // not to pods of its own
				routes = append(routes, strings.Join(fields[:5], " "))
			}
		}
	}
	if len(routes) == 0 {
		t.Fatalf("%s has no routes to pods of other nodes", node)
	}
	change := func(ctx context.Context, verb string) error {
		batch := "route " + verb + " " + strings.Join(routes, "\nroute "+verb+" ")
		_, err := e.On(ctx, node, "bash", "-c", "ip -batch - <<< '"+batch+"'")
		return err
	}
	restore = func(ctx context.Context) error { return change(ctx, "replace") }
	must(t, change(t.Context(), "del"))
	undo(t, restore)
	return restore
}

// testBoot powers on a node whose kube-proxy does not start, and whose network plugin starts even later: its speaker
// announces and advertises nothing until kube-proxy has served, and until pods of other nodes answer nothing that
// others can announce. A restart of the speaker does not wait for kube-proxy.
func testBoot(t *testing.T, e *env) {
	node := e.workers()[2]
	// The ClusterIP of the API server works only after kube-proxy has served.
	e.speakerEnv(t, node, map[string]string{
		"KUBERNETES_SERVICE_HOST": e.nodeAddresses(t, e.Cluster.Nodes()[0])[0].String(), "KUBERNETES_SERVICE_PORT": "6443",
	})
	only := e.service(t, e.app, "boot-only", annotation(nodeSelector, "kubernetes.io/hostname="+node))
	bgp := e.service(t, e.app, "boot-bgp", routed)
	e.served(t, testbed.Client, only)
	e.hops(t, bgp, len(e.workers()))
	move := func(ctx context.Context, from, to string) error {
		_, err := e.On(ctx, node, "mv", from, to)
		return err
	}
	must(t, move(t.Context(), proxyConfig, proxyHidden))
	t.Cleanup(func() {
		e.ensureOn(t, node)
		_, err := e.On(context.Background(), node, "bash", "-c", "test -e "+proxyConfig+" || mv "+proxyHidden+" "+proxyConfig)
		if err != nil {
			t.Error(err)
		}
	})
	must(t, e.Cluster.PowerOff(t.Context(), node))
	e.hops(t, bgp, len(e.workers())-1)
	e.silent(t, only)

	streams := e.watch(t, testbed.Far, bgp[:1])
	on := time.Now()
	must(t, e.Cluster.PowerOn(t.Context(), node))
	startPlugin := e.takePodRoutes(t, node)
	e.problem(t, node, "KubeProxyNotReady", 1)
	t.Logf("the speaker waits for kube-proxy %s after power-on", since(on))
	must(t, testbed.Holds(t.Context(), bootHold, func(ctx context.Context) error {
		if err := e.hasProblem(ctx, node, "KubeProxyNotReady", 1); err != nil {
			return err
		}
		answered, err := e.Answered(ctx, testbed.Client, only[0])
		if err == nil && answered {
			err = fmt.Errorf("%s answers for %s", node, only[0])
		}
		return err
	}))
	e.hops(t, bgp, len(e.workers())-1)
	if failed := finish(t, streams, "boot without kube-proxy"); failed > 0 {
		t.Errorf("%d probes failed", failed)
	}
	must(t, testbed.Until(t.Context(), soon, "the reason in the condition", func(ctx context.Context) error {
		c, err := e.ServiceCondition(ctx, e.app.Namespace, "boot-only", v1beta1.ConditionAnnouncedL2)
		if err == nil && !strings.Contains(c.Message, "KubeProxyNotReady: "+node) {
			err = fmt.Errorf("the condition is %s: %s", c.Reason, c.Message)
		}
		return err
	}))

	must(t, move(t.Context(), proxyHidden, proxyConfig))
	back := time.Now()
	e.problem(t, node, "KubeProxyNotReady", 0)
	t.Logf("kube-proxy has served %s after it could start", since(back))
	must(t, testbed.Holds(t.Context(), bootHold/2, func(ctx context.Context) error {
		return e.hasProblem(ctx, node, "NetworkUnavailable", 1)
	}))
	e.hops(t, bgp, len(e.workers())-1)
	owner, err := e.WaitOwner(t.Context(), testbed.Client, only[0])
	must(t, err)
	if owner != node {
		t.Errorf("%s announces what %s alone may announce", owner, node)
	}
	must(t, startPlugin(t.Context()))
	e.problem(t, node, "NetworkUnavailable", 0)
	e.hops(t, bgp, len(e.workers()))
	e.served(t, testbed.Client, only)
	must(t, e.WaitNode(t.Context(), node, on))
	must(t, e.WaitReady(t.Context()))

	// Restart the speaker while kube-proxy is down.
	must(t, move(t.Context(), proxyConfig, proxyHidden))
	_, err = e.On(t.Context(), node, "pkill", "-x", "kube-proxy")
	must(t, err)
	wait, err := e.KillSpeaker(t.Context(), node)
	must(t, err)
	must(t, wait())
	e.problem(t, node, "KubeProxyNotReady", 0)
	e.served(t, testbed.Client, only)
	must(t, move(t.Context(), proxyHidden, proxyConfig))
}

// testUnfiltered locks the nftables table on the owner of an address so that its speaker cannot
// write it: addresses with ranges move, others stay.
func testUnfiltered(t *testing.T, e *env) {
	must(t, e.Calm(t.Context()))
	closed := e.service(t, e.app, "unfiltered-closed", annotation(sourcesAnnotation, "0.0.0.0/0,::/0"))
	e.served(t, testbed.Client, closed)
	owner, err := e.WaitOwner(t.Context(), testbed.Client, closed[0])
	must(t, err)
	open := e.service(t, e.app, "unfiltered-open", annotation(nodeSelector, "kubernetes.io/hostname="+owner))
	e.served(t, testbed.Client, open)

	// Only its owner can change a table, while the owner's socket is open (NFT_TABLE_F_OWNER).
	holder := e.Cluster.Command(t.Context(), owner, "nft", "-i")
	stdin, err := holder.StdinPipe()
	must(t, err)
	must(t, holder.Start())
	release := func() { _ = stdin.Close(); _ = holder.Wait() }
	t.Cleanup(release)
	_, err = io.WriteString(stdin, "delete table inet holdfast; add table inet holdfast { flags owner; }\n")
	must(t, err)
	e.problem(t, owner, "FilterNotInForce", 1)
	e.owned(t, closed, func(node string) bool { return node != owner })
	e.served(t, testbed.Client, closed)
	e.owned(t, open, func(node string) bool { return node == owner })

	release()
	e.problem(t, owner, "FilterNotInForce", 0)
	e.owned(t, closed, func(node string) bool { return node == owner })
	e.served(t, testbed.Client, closed)
}
