//go:build e2e

package e2e

import (
	"context"
	"errors"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Annotation of Services whose pods send from their addresses.
const egressAnnotation = "holdfast.dev/egress"

// egressPort is where servers outside of the cluster answer.
const egressPort = 9090

// egressConnections is how many connections each pod keeps to each server during an event.
const egressConnections = 50

// egressObjects are a pool of the nodes' LAN, and its advertisement. %[1]s is the preferred owner.
const egressObjects = `
apiVersion: holdfast.dev/v1beta1
kind: IPAddressPool
metadata: {name: egress}
spec: {autoAssign: false, addresses: [172.30.0.224/29, "fd00:30::3:0/125"]}
---
` + egressAdvertisement

// egressAdvertisement announces the pool.
const egressAdvertisement = `
apiVersion: holdfast.dev/v1beta1
kind: L2Advertisement
metadata: {name: egress}
spec:
  ipAddressPools: [egress]
  preferredNodeSelectors:
    - weight: 100
      preference: {matchLabels: {kubernetes.io/hostname: %[1]s}}
`

// egressBed is an application on two workers whose pods send from the addresses of a Service, which the third worker
// announces, and servers outside of the cluster.
type egressBed struct {
	*env
	// test is the test of the whole bed.
	test      *testing.T
	app       testbed.App
	owner     string
	addresses []netip.Addr
	servers   []netip.AddrPort
}

// testEgress lets pods open connections to a host outside of the cluster, and moves the address that they send from.
func testEgress(t *testing.T, e *env) {
	must(t, e.Calm(t.Context()))
	b := newEgressBed(t, e)
	t.Run("Sources", b.testSources)
	t.Run("OtherPods", b.testOtherPods)
	t.Run("OtherLink", b.testOtherLink)
	t.Run("PlannedMove", b.testPlannedMove)
	t.Run("PowerOff", b.testPowerOff)
	t.Run("Faults", b.testFaults)
	t.Run("NewPod", b.testNewPod)
	t.Run("ManyConnections", b.testManyConnections)
	t.Run("NoOwner", b.testNoOwner)
	t.Run("Ended", b.testEnded)
}

// newEgressBed sets up an egressBed, and waits until its pods send from the Service's addresses.
func newEgressBed(t *testing.T, e *env) *egressBed {
	t.Helper()
	workers := e.workers()
	b := &egressBed{env: e, test: t, owner: workers[2]}
	e.apply(t, fmt.Sprintf(egressObjects, b.owner))

	b.app = testbed.App{Namespace: e.namespace(t), Name: "sender", Replicas: 2, Nodes: workers[:2]}
	must(t, e.Deploy(t.Context(), b.app))
	b.addresses = e.service(t, b.app, "sender", pool("egress"), annotation(egressAnnotation, "true"))

	// Nodes with many pods have many links.
	crowd := testbed.App{Namespace: b.app.Namespace, Name: "crowd", Replicas: 10, Nodes: []string{b.owner}}
	must(t, e.Deploy(t.Context(), crowd))

	for _, a := range []string{"172.30.0.100", "fd00:30::100"} {
		at := netip.AddrPortFrom(netip.MustParseAddr(a), egressPort)
		server, err := e.Serve(context.WithoutCancel(t.Context()), testbed.Client, at)
		must(t, err)
		undo(t, func(context.Context) error { return server.Stop() })
		b.servers = append(b.servers, server.At)
	}
	e.waitCondition(t, b.app.Namespace, "sender", v1beta1.ConditionEgress, metav1.ConditionTrue, "EgressActive")
	for _, pod := range b.pods(t) {
		b.waitSource(t, &pod)
	}
	return b
}

// pods returns the pods that send.
func (b *egressBed) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	pods, err := b.AppPods(t.Context(), b.app)
	must(t, err)
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// addressFor returns the Service's address of the family of a server.
func (b *egressBed) addressFor(server netip.AddrPort) netip.Addr {
	i := slices.IndexFunc(b.addresses, func(a netip.Addr) bool { return a.Is4() == server.Addr().Is4() })
	return b.addresses[i]
}

// waitSource waits until a pod sends from the Service's addresses.
func (b *egressBed) waitSource(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	for _, server := range b.servers {
		err := testbed.Until(t.Context(), soon, pod.Name+" to send from the address", func(ctx context.Context) error {
			from, err := b.AskIn(ctx, pod, probe.TCP, server)
			if err == nil && from.Addr() != b.addressFor(server) {
				err = fmt.Errorf("it sends from %s", from)
			}
			return err
		})
		if err != nil {
			why, _ := b.Plugin(t.Context(), "why", "pod", pod.Namespace+"/"+pod.Name)
			t.Fatalf("%v\n%s", err, why)
		}
	}
}

// testSources checks the source of both families and protocols, and that the ports are in the slice of the pod's node.
func (b *egressBed) testSources(t *testing.T) {
	for _, pod := range b.pods(t) {
		for _, server := range b.servers {
			first := b.firstPort(t, b.addressFor(server), pod.Spec.NodeName)
			for _, protocol := range []string{probe.TCP, probe.UDP} {
				from, err := b.AskIn(t.Context(), &pod, protocol, server)
				must(t, err)
				if from.Addr() != b.addressFor(server) || from.Port() < first || from.Port()-first >= 4096 {
					t.Errorf("%s on %s sends %s from %s, want %s and a port from %d on",
						pod.Name, pod.Spec.NodeName, protocol, from, b.addressFor(server), first)
				}
			}
		}
	}
}

// firstPort returns the first port of a node's slice of an address.
func (b *egressBed) firstPort(t *testing.T, address netip.Addr, node string) uint16 {
	t.Helper()
	name := strings.ReplaceAll(address.StringExpanded(), ":", "-")
	isOfNode := func(s v1beta1.EgressSlice) bool { return s.Node == node }
	hasSlice := func(a *v1beta1.EgressAllocation) error {
		if !slices.ContainsFunc(a.Status.Slices, isOfNode) {
			return fmt.Errorf("the slices are %+v", a.Status.Slices)
		}
		return nil
	}
	allocation := until(t, b.Resource(testbed.EgressAllocations), name, "slice of "+node, hasSlice)
	i := slices.IndexFunc(allocation.Status.Slices, isOfNode)
	return uint16(allocation.Status.Slices[i].First)
}

// testOtherPods checks that a pod which the Service does not select does not send from its addresses.
func (b *egressBed) testOtherPods(t *testing.T) {
	pods, err := b.AppPods(t.Context(), b.env.app)
	must(t, err)
	for _, server := range b.servers {
		must(t, b.sendsFromElsewhere(t.Context(), &pods[0], server))
	}
}

// testOtherLink: the default routes of the nodes lead over another link than the addresses'. Beyond that link pods
// reach nothing until their nodes have default routes by it, and send from the addresses then. The next tests go on so.
func (b *egressBed) testOtherLink(t *testing.T) {
	if b.isRepetition {
		t.Skip("it takes a minute and a half, and does not depend on the mode of kube-proxy")
	}
	if b.leavesByLAN(t, b.app.Nodes[0]) {
		t.Skip("the nodes have no default route by another link")
	}

	var beyond []netip.AddrPort
	for _, address := range []string{"203.0.113.9", "2001:db8:b::9"} {
		a := netip.MustParseAddr(address)
		prefix := netip.PrefixFrom(a, a.BitLen()).String()
		must(t, b.do(t.Context(), testbed.Client, "ip", "address", "add", prefix, "dev", "lo"))
		undo(b.test, func(ctx context.Context) error {
			return b.do(ctx, testbed.Client, "ip", "address", "del", prefix, "dev", "lo")
		})
		server, err := b.Serve(context.WithoutCancel(t.Context()), testbed.Client, netip.AddrPortFrom(a, egressPort))
		must(t, err)
		undo(b.test, func(context.Context) error { return server.Stop() })
		beyond = append(beyond, server.At)
	}
	b.rejects(t, beyond...)
	must(t, testbed.Until(t.Context(), time.Minute, "report of a missing route", func(ctx context.Context) error {
		got, err := b.ServiceCondition(ctx, b.app.Namespace, "sender", v1beta1.ConditionEgress)
		const text = "default route by link " + testbed.LAN
		if err == nil && (got.Status != metav1.ConditionFalse || !strings.Contains(got.Message, text)) {
			err = fmt.Errorf("it is %s: %s", got.Status, got.Message)
		}
		return err
	}))

	b.routeByLAN(b.test, b.app.Nodes...)
	b.servers = append(b.servers, beyond...)
	for _, pod := range b.pods(t) {
		b.waitSource(t, &pod)
	}
	b.testSources(t)
}

// routeByLAN gives nodes default routes by the LAN until the end of the test, unless theirs lead there. Others come
// first.
func (e *env) routeByLAN(t *testing.T, nodes ...string) {
	t.Helper()
	if e.leavesByLAN(t, nodes[0]) {
		return
	}
	for _, node := range nodes {
		for _, gateway := range []string{"172.30.0.100", "fd00:30::100"} {
			route := fmt.Sprintf("default via %s dev %s metric 4000", gateway, testbed.LAN)
			must(t, e.do(t.Context(), node, "sh", "-c", "ip route replace "+route))
			// A node that was off has lost it.
			undo(t, func(ctx context.Context) error {
				return e.do(ctx, node, "sh", "-c", "ip route del "+route+" || true")
			})
		}
	}
}

// leavesByLAN reports whether a node's default route leads over the LAN.
func (e *env) leavesByLAN(t *testing.T, node string) bool {
	t.Helper()
	routes, err := e.On(t.Context(), node, "ip", "route", "list", "default")
	must(t, err)
	return strings.Contains(routes, testbed.LAN)
}

// sendsFromElsewhere returns an error if a pod sends to a server from the Service's addresses. Where the network plugin
// translates nothing, the server cannot answer to the pod.
func (b *egressBed) sendsFromElsewhere(ctx context.Context, pod *corev1.Pod, server netip.AddrPort) error {
	from, err := b.AskIn(ctx, pod, probe.TCP, server)
	if err == nil && slices.Contains(b.addresses, from.Addr()) {
		return fmt.Errorf("%s sends from %s", pod.Name, from)
	}
	return nil
}

// during keeps connections of all pods, and opens new ones, while something happens. No kept connection may be lost. It
// returns how many new connections failed.
func (b *egressBed) during(t *testing.T, event func()) (failed int) {
	t.Helper()
	var kept testbed.Connections
	var streams []watched
	for _, pod := range b.pods(t) {
		connections, err := b.KeepIn(t.Context(), &pod, egressConnections, b.servers...)
		must(t, err)
		kept = append(kept, connections...)
		for _, server := range b.servers {
			s, err := b.ProbeIn(t.Context(), &pod, probe.UDP, server, "-every", pace.String())
			must(t, err)
			must(t, s.WaitGood(t.Context(), soon, time.Now(), 50))
			streams = append(streams, watched{fmt.Sprintf("%s from %s", family(server.Addr()), pod.Spec.NodeName), s})
		}
	}

	event()
	recovered(t, streams)
	survived, err := kept.Stop()
	must(t, err)
	t.Log(survived)
	if survived.Lost() > 0 {
		t.Errorf("%d outgoing connections are lost", survived.Lost())
	}
	return finish(t, streams, t.Name())
}

// testPlannedMove excludes the owner, and lets it announce again.
func (b *egressBed) testPlannedMove(t *testing.T) {
	exclude := func(ctx context.Context, value string) error {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, corev1.LabelNodeExcludeBalancers, value)
		_, err := b.Kube.CoreV1().Nodes().Patch(ctx, b.owner, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	undo(t, func(ctx context.Context) error { return exclude(ctx, "null") })
	isOwner := func(node string) bool { return node == b.owner }

	b.owned(t, b.addresses, isOwner)
	failed := b.during(t, func() {
		must(t, exclude(t.Context(), `""`))
		b.owned(t, b.addresses, func(node string) bool { return !isOwner(node) })
		must(t, exclude(t.Context(), "null"))
		b.owned(t, b.addresses, isOwner)
	})
	if failed > 0 {
		t.Errorf("%d new flows failed while the address moved in good order", failed)
	}
}

// testPowerOff powers off the owner, which has none of the pods.
func (b *egressBed) testPowerOff(t *testing.T) {
	t.Cleanup(func() {
		b.ensureOn(t, b.owner)
		if err := b.Calm(context.Background()); err != nil {
			t.Error(err)
		}
	})
	b.during(t, func() {
		must(t, b.Cluster.PowerOff(t.Context(), b.owner))
		b.owned(t, b.addresses, func(node string) bool { return node != b.owner })
	})
}

// testFaults lets speakers, owners and cables fail one after the other. Outgoing connections survive all of it. It
// takes minutes, and runs with -matrix.
func (b *egressBed) testFaults(t *testing.T) {
	if !*matrix {
		t.Skip("faults of outgoing connections run with -matrix")
	}
	isOwner := func(node string) bool { return node == b.owner }
	isOther := func(node string) bool { return node != b.owner }
	for _, fault := range []struct {
		name  string
		begin func(ctx context.Context) error
		end   func(ctx context.Context) error
	}{
		{"the owner is frozen",
			func(ctx context.Context) error { return b.Cluster.Freeze(ctx, b.owner) },
			func(ctx context.Context) error { return b.Cluster.Thaw(ctx, b.owner) }},
		{"the owner's cable is cut",
			func(ctx context.Context) error { return b.Cluster.SetLink(ctx, b.owner, testbed.LAN, false) },
			func(ctx context.Context) error { return b.Cluster.SetLink(ctx, b.owner, testbed.LAN, true) }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			undo(t, func(ctx context.Context) error { return errors.Join(fault.end(ctx), b.Calm(ctx)) })
			must(t, b.Calm(t.Context()))
			b.owned(t, b.addresses, isOwner)
			b.during(t, func() {
				must(t, fault.begin(t.Context()))
				b.owned(t, b.addresses, isOther)
			})
		})
	}

	for _, node := range []string{b.app.Nodes[0], b.owner} {
		t.Run("the speaker of "+node+" is replaced", func(t *testing.T) {
			b.during(t, func() { must(t, b.ReplaceSpeaker(t.Context(), node)) })
		})
		t.Run("the tables of "+node+" are flushed", func(t *testing.T) {
			undo(t, b.restartKubeProxies) // they may take an hour to notice
			b.during(t, func() { must(t, b.do(t.Context(), node, "nft", "flush", "ruleset")) })
		})
	}
}

// testNewPod replaces the pods: the new ones send from the address within a second of their readiness, and from nothing
// but the address once they do.
func (b *egressBed) testNewPod(t *testing.T) {
	const template = `{"spec":{"template":{"metadata":{"annotations":{"e2e/replaced":%q}}}}}`
	patch := fmt.Appendf(nil, template, time.Now().String())
	deployments := b.Kube.AppsV1().Deployments(b.app.Namespace)
	_, err := deployments.Patch(t.Context(), b.app.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
	must(t, testbed.Until(t.Context(), time.Minute, "new pods", func(ctx context.Context) error {
		pods, err := b.AppPods(ctx, b.app)
		isNew := func(p corev1.Pod) bool { return p.Annotations["e2e/replaced"] != "" && testbed.Ready(&p) }
		if err == nil && (len(pods) != 2 || !isNew(pods[0]) || !isNew(pods[1])) {
			err = errors.New("they are not ready yet")
		}
		return err
	}))
	for _, pod := range b.pods(t) {
		b.waitSource(t, &pod)
	}
	b.testSources(t)
}

// testManyConnections keeps 10,000 connections from pods on three nodes to one server, while the address moves.
func (b *egressBed) testManyConnections(t *testing.T) {
	if !*matrix {
		t.Skip("many outgoing connections run with -matrix")
	}
	const total = 10_000
	b.servers = b.servers[:2] // the third node has no default route by the LAN
	b.app.Nodes = b.workers()[:3]
	b.app.Replicas = 3
	must(t, b.Deploy(t.Context(), b.app))

	server := b.servers[0]
	var kept testbed.Connections
	nodes := map[string]bool{}
	for _, pod := range b.pods(t) {
		nodes[pod.Spec.NodeName] = true
		b.waitSource(t, &pod)
		connections, err := b.KeepIn(t.Context(), &pod, total/3+1, server)
		must(t, err)
		kept = append(kept, connections...)
	}
	if len(nodes) != 3 {
		t.Fatalf("the pods are on %d nodes, want 3", len(nodes))
	}

	b.testPlannedMove(t)
	survived, err := kept.Stop()
	must(t, err)
	t.Log(survived)
	if survived.Lost() > 0 {
		t.Errorf("%d outgoing connections are lost", survived.Lost())
	}
}

// testNoOwner takes the advertisement away: new connections are rejected at once.
func (b *egressBed) testNoOwner(t *testing.T) {
	advertisement := fmt.Sprintf(egressAdvertisement, b.owner)
	undo(t, func(ctx context.Context) error { return b.Apply(ctx, "", []byte(advertisement)) })
	must(t, b.Delete(t.Context(), "", []byte(advertisement)))
	b.rejects(t, b.servers...)
	b.waitCondition(t, b.app.Namespace, "sender", v1beta1.ConditionEgress, metav1.ConditionFalse, "EgressUnavailable")
}

// rejects waits until the nodes reject connections of all pods to servers at once.
func (b *egressBed) rejects(t *testing.T, servers ...netip.AddrPort) {
	t.Helper()
	for _, pod := range b.pods(t) {
		for _, server := range servers {
			must(t, testbed.Until(t.Context(), soon, "rejection", func(ctx context.Context) error {
				start := time.Now()
				from, err := b.AskIn(ctx, &pod, probe.TCP, server)
				switch {
				case err == nil:
					return fmt.Errorf("%s sends from %s", pod.Name, from)
				case !strings.Contains(err.Error(), "refused") && !strings.Contains(err.Error(), "prohibited"):
					return fmt.Errorf("no rejection after %s: %w", since(start), err)
				}
				return nil
			}))
		}
	}
}

// testEnded removes the annotation: pods send from their nodes again, and the condition goes.
func (b *egressBed) testEnded(t *testing.T) {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, egressAnnotation)
	services := b.Kube.CoreV1().Services(b.app.Namespace)
	_, err := services.Patch(t.Context(), "sender", types.MergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
	for _, pod := range b.pods(t) {
		must(t, testbed.Until(t.Context(), soon, pod.Name+" to send from its node", func(ctx context.Context) error {
			return b.sendsFromElsewhere(ctx, &pod, b.servers[0])
		}))
	}
}
