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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// atOnce lets an upgrade replace all speakers at once.
var atOnce = []string{
	"--set", "speaker.minReadySeconds=0", "--set", "speaker.updateStrategy.rollingUpdate.maxUnavailable=100%",
}

// testDataPath stops kube-proxy on all nodes, and plain DNAT rules deliver in its place: with dataPath: Other Services
// are announced in every way, but for those with ranges that nothing enforces, and no speaker waits for kube-proxy or
// keeps a table.
func testDataPath(t *testing.T, e *env) {
	api := netip.AddrPortFrom(e.nodeAddresses(t, e.Cluster.Nodes()[0])[0], 6443)
	undo(t, func(ctx context.Context) error {
		return e.onNodes(ctx, "nft 'delete table ip standin; delete table ip6 standin'")
	})
	undo(t, func(ctx context.Context) error {
		// The second one resets how speakers are replaced, and replaces none.
		return errors.Join(e.Install(ctx, atOnce...), e.Install(ctx), e.WaitReady(ctx))
	})
	undo(t, func(ctx context.Context) error {
		serves := func(ctx context.Context) error {
			return e.onNodes(ctx, "nft list table ip kube-proxy; nft list table ip6 kube-proxy")
		}
		return errors.Join(e.onNodes(ctx, "test ! -e "+proxyHidden+" || mv "+proxyHidden+" "+proxyConfig),
			testbed.Until(ctx, time.Minute, "kube-proxy on all nodes", serves))
	})
	must(t, e.standIn(t.Context(), nil, api))
	must(t, e.onNodes(t.Context(), "mv "+proxyConfig+" "+proxyHidden+
		"; pkill -KILL -x kube-proxy; nft 'delete table ip kube-proxy; delete table ip6 kube-proxy; "+
		"add table inet holdfast-headstart'"))
	must(t, e.Install(t.Context(), append([]string{"--set", "dataPath=Other"}, atOnce...)...))
	must(t, testbed.Until(t.Context(), soon, "the end of all tables", func(ctx context.Context) error {
		for _, node := range e.Cluster.Nodes() {
			tables, err := e.On(ctx, node, "nft", "list", "tables")
			if err != nil {
				return err
			}
			// The record of the pods' network has nothing to do with kube-proxy.
			if strings.Contains(strings.ReplaceAll(tables, "holdfast-pods-reached", ""), "holdfast") {
				return fmt.Errorf("%s has %s", node, tables)
			}
		}
		return nil
	}))

	served := map[string][]netip.Addr{}
	var all []netip.Addr
	add := func(name string, changes ...change) {
		served[name] = e.service(t, e.app, "path-"+name, changes...)
		all = append(all, served[name]...)
	}
	for _, w := range ways {
		add(w.name, w.changes...)
	}
	add("ranges", from(unusedRanges...))
	must(t, e.standIn(t.Context(), all, api))
	for _, w := range ways {
		e.open(t, w.host, served[w.name])
	}
	// The network plugin would enforce these. Ours does not, and no filter of Holdfast's is in the way.
	e.open(t, testbed.Client, served["ranges"])
	e.announced(t, e.app.Namespace, "path-ranges")
	e.waitCondition(t, e.app.Namespace, "path-ranges", v1beta1.ConditionFiltered, metav1.ConditionFalse,
		"FilterNotEnforceable")
	e.why(t, "spec.loadBalancerSourceRanges is the network plugin's to enforce", e.app.Namespace+"/path-ranges")

	e.apply(t, object("IPAddressPool", "e2e-path",
		`{addresses: [172.30.0.214, "fd00:30::3:9"], autoAssign: false, sourceRanges: [0.0.0.0/0, "::/0"]}`))
	e.valid(t, testbed.Pools, "e2e-path", metav1.ConditionFalse, "FilterNotEnforceable")
	e.apply(t, object("L2Advertisement", "e2e-path", `{ipAddressPools: [e2e-path]}`))
	closed := e.service(t, e.app, "path-pool", pool("e2e-path"))
	e.waitCondition(t, e.app.Namespace, "path-pool", v1beta1.ConditionAnnouncedL2, metav1.ConditionFalse,
		"FilterNotEnforceable")
	e.silent(t, closed)
	annotated := e.service(t, e.app, "path-annotated", routed, annotation(sourcesAnnotation, "0.0.0.0/0,::/0"))
	e.waitCondition(t, e.app.Namespace, "path-annotated", v1beta1.ConditionAnnouncedBGP, metav1.ConditionFalse,
		"FilterNotEnforceable")
	e.hops(t, annotated, 0)
	e.why(t, "nothing enforces the source ranges", e.app.Namespace+"/path-annotated")

	// Nothing says any more that kube-proxy has served. With it a speaker would wait for longer than soon.
	node := e.workers()[0]
	wait, err := e.KillSpeaker(t.Context(), node)
	must(t, err)
	must(t, wait())
	must(t, testbed.Until(t.Context(), soon, "a speaker that waits for no kube-proxy", func(ctx context.Context) error {
		return e.hasProblem(ctx, node, "KubeProxyNotReady", 0)
	}))
	e.open(t, testbed.Client, served["l2-cluster"])
}

// onNodes runs a line of the shell on every node. It ends with the first failure.
func (e *env) onNodes(ctx context.Context, line string) error {
	for _, node := range e.Cluster.Nodes() {
		if _, err := e.On(ctx, node, "sh", "-e", "-c", line); err != nil {
			return err
		}
	}
	return nil
}

// standIn has every node lead connections to addresses of the application to its first pod, and those to the ClusterIP
// of the API server to that.
func (e *env) standIn(ctx context.Context, addresses []netip.Addr, api netip.AddrPort) error {
	pods, err := e.AppPods(ctx, e.app)
	if err != nil {
		return err
	}
	kubernetes, err := e.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	rules := map[string]string{"ip": fmt.Sprintf("ip daddr %s tcp dport 443 dnat to %s; ", kubernetes.Spec.ClusterIP, api)}
	for _, a := range addresses {
		for _, own := range pods[0].Status.PodIPs {
			to, family := netip.MustParseAddr(own.IP), "ip"
			if a.Is6() {
				family = "ip6"
			}
			if to.Is6() != a.Is6() {
				continue
			}
			for protocol, port := range map[string]uint16{probe.TCP: 8080, probe.UDP: 8081} {
				at := netip.MustParseAddrPort(testbed.Target(protocol, a))
				rules[family] += fmt.Sprintf("%s daddr %s %s dport %d dnat to %s; ", family, a, protocol, at.Port(),
					netip.AddrPortFrom(to, port))
			}
		}
	}
	var table strings.Builder
	for _, family := range []string{"ip", "ip6"} {
		fmt.Fprintf(&table, "table %[1]s standin; delete table %[1]s standin; table %[1]s standin { "+
			"chain arriving { type nat hook prerouting priority -100; %[2]s}; "+
			"chain own { type nat hook output priority -100; %[2]s}; chain leaving { type nat hook postrouting priority 100; "+
			"ct status dnat masquerade; }; }; ",
			family, rules[family])
	}
	return e.onNodes(ctx, "nft '"+table.String()+"'")
}

// testHeadStart creates Services while kube-proxy is frozen on every node: their addresses are served all the same.
// Open connections stay when kube-proxy goes on and takes over.
func testHeadStart(t *testing.T, e *env) {
	freeze := func(ctx context.Context, signal string) {
		for _, node := range e.Cluster.Nodes() {
			if _, err := e.On(ctx, node, "pkill", signal, "-x", "kube-proxy"); err != nil {
				t.Error(err)
			}
		}
	}
	freeze(t.Context(), "-STOP")
	t.Cleanup(func() { freeze(context.Background(), "-CONT") })
	var kept []testbed.Connections
	var served [][]netip.Addr
	for _, w := range ways {
		addresses := e.service(t, e.app, "start-"+w.name, w.changes...)
		e.open(t, w.host, addresses)
		c, err := e.Keep(t.Context(), w.host, 10, addresses...)
		must(t, err)
		kept, served = append(kept, c), append(served, addresses)
	}
	freeze(t.Context(), "-CONT")
	for i, w := range ways {
		for _, node := range e.Cluster.Nodes() {
			e.proxies(t, node, served[i])
		}
		e.open(t, w.host, served[i])
	}
	for i, c := range kept {
		survived, err := c.Stop()
		must(t, err)
		if survived.Lost() > 0 {
			t.Errorf("%s: %s", ways[i].name, survived)
		}
	}
}

// localHold is how long a node whose kube-proxy is frozen is watched.
const localHold = 3 * time.Second

// testLocalArrives starts a pod on a node whose kube-proxy is frozen: it would drop packets for the Service. The node
// advertises no route before kube-proxy serves the pod, and no request fails.
func testLocalArrives(t *testing.T, e *env) {
	app := e.app
	// With both nodes from the beginning the first pod stays. A pod that ended would fail requests on a busy machine, by
	// its node's kube-proxy.
	app.Name, app.Replicas, app.Nodes = "arrives", 1, e.workers()[:2]
	must(t, e.Deploy(t.Context(), app))
	addresses := e.service(t, app, "arrives", routed, local)
	e.hops(t, addresses, 1)
	e.served(t, testbed.Far, addresses)
	pods, err := e.AppPods(t.Context(), app)
	must(t, err)
	node := but(app.Nodes, pods[0].Spec.NodeName)[0]
	// What kube-proxy does not know at all has a head start.
	e.proxies(t, node, addresses)
	signal := func(ctx context.Context, name string) error {
		_, err := e.On(ctx, node, "pkill", name, "-x", "kube-proxy")
		return err
	}
	must(t, signal(t.Context(), "-STOP"))
	undo(t, func(ctx context.Context) error { return signal(ctx, "-CONT") })
	streams, routes := e.watch(t, testbed.Far, addresses), e.watchRoutes(t)
	app.Replicas = 2
	must(t, e.Deploy(t.Context(), app))
	v4, v6, err := e.Hops(t.Context(), node)
	must(t, err)
	must(t, testbed.Holds(t.Context(), localHold, func(ctx context.Context) error {
		for _, router := range bothRouters {
			for _, a := range addresses {
				hops, err := e.NextHops(ctx, router, a)
				if err != nil || slices.Contains(hops, v4) || slices.Contains(hops, v6) {
					return errors.Join(err, fmt.Errorf("%s has next hops %v for %s", router, hops, a))
				}
			}
		}
		return nil
	}))
	must(t, signal(t.Context(), "-CONT"))
	start := time.Now()
	e.hops(t, addresses, 2)
	t.Logf("routers have the routes %s after kube-proxy went on", since(start))
	recovered(t, streams)
	unharmed(t, streams, routes, addresses)
}
