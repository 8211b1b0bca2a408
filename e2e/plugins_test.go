//go:build e2e && plugins

package e2e

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

var (
	networks  = flag.String("plugin", "", "run the rows of the network plugin of this `name` only")
	proxyMode = flag.String("proxy", lab.ProxyNFTables, "`mode` of kube-proxy: nftables or iptables")
)

// pluginRun is what is shown with a network plugin.
type pluginRun struct {
	// network is its name in package plugin.
	network string
	// values are arguments for helm.
	values []string
	cases  []testCase
	// onRequest means that it runs only if -plugin names it.
	onRequest bool
}

// withProxy are the cases for plugins beside kube-proxy: Holdfast filters and serves as with the lab's own network.
var withProxy = []testCase{
	{"Reach", testReach},
	{"LocalArrives", testLocalArrives},
	{"FilterRanges", testFilterRanges},
	{"FilterInside", testFilterInside},
	{"FilterLocal", testFilterLocal},
	{"FilterOrder", testFilterOrder},
	{"Egress", testEgress},
	{"BGPDrain", testBGPDrain},
	{"SpeakerRestart", testSpeakerRestart},
	{"L2", pluginFaults},
	{"NodeLoss", testNodeLoss},
	{"Quiet", pluginQuiet},
}

// withPolicies are further cases for plugins that enforce NetworkPolicies.
var withPolicies = []testCase{
	{"EgressPolicy", testEgressPolicy},
}

var pluginRuns = []pluginRun{
	{network: "flannel-vxlan", cases: withProxy},
	{network: "flannel-host-gw", cases: withProxy},
	// Compiling these takes long.
	{network: "calico", cases: slices.Concat(withProxy, withPolicies), onRequest: true},
	{network: "cilium", cases: besideCilium, onRequest: true},
	{network: "cilium-kpr", values: []string{"--set", "dataPath=Other"}, cases: inPlace, onRequest: true},
}

// TestPlugins shows what Holdfast promises with network plugins. Each has a lab of its own.
func TestPlugins(t *testing.T) {
	isNamed := func(r pluginRun) bool { return r.network == *networks }
	if *networks != "" && !slices.ContainsFunc(pluginRuns, isNamed) {
		t.Fatalf("no rows for plugin %q", *networks)
	}
	for _, r := range pluginRuns {
		if !isNamed(r) && (*networks != "" || r.onRequest) {
			continue
		}
		t.Run(r.network, func(t *testing.T) {
			start := time.Now()
			b, err := testbed.New(openNetwork(t, r.network, *proxyMode))
			must(t, err)
			b.Values = r.values
			e := install(t, b, true)
			for _, c := range r.cases {
				t.Run(c.name, func(t *testing.T) {
					e.needs(t, c.name)
					c.run(t, e)
				})
			}
			t.Logf("%s took %s", r.network, since(start).Round(time.Second))
		})
	}
}

// pluginFaults drains the owner of layer 2 addresses, and cuts its power, under load.
func pluginFaults(t *testing.T, e *env) {
	e.injects(t, func(f fault) bool { return f.name == "drain" || f.name == "power-off of the owner" })
}

// pluginQuiet waits until no speaker reports a problem: what a plugin makes impossible is no alarm.
func pluginQuiet(t *testing.T, e *env) {
	must(t, testbed.Until(t.Context(), time.Minute, "speakers without problems", func(ctx context.Context) error {
		for _, node := range e.Cluster.Nodes() {
			metrics, err := e.Metrics(ctx, node)
			if err != nil {
				return err
			}
			for series, value := range metrics {
				if strings.HasPrefix(series, "holdfast_problems{") && value > 0 {
					return fmt.Errorf("%s reports %s", node, series)
				}
			}
		}
		return nil
	}))
}

// egressPolicy allows pods of a namespace connections to one port, and no other ones outwards.
const egressPolicy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: one-port}
spec:
  podSelector: {}
  policyTypes: [Egress]
  egress: [{ports: [{protocol: TCP, port: %[1]d}, {protocol: UDP, port: %[1]d}]}]
`

// testEgressPolicy checks that a NetworkPolicy holds for pods that send from the addresses of their Service.
func testEgressPolicy(t *testing.T, e *env) {
	b := newEgressBed(t, e)
	const refusedPort = egressPort + 1
	var refused []netip.AddrPort
	for _, allowed := range b.servers {
		at := netip.AddrPortFrom(allowed.Addr(), refusedPort)
		server, err := e.Serve(context.WithoutCancel(t.Context()), testbed.Client, at)
		must(t, err)
		undo(t, func(context.Context) error { return server.Stop() })
		refused = append(refused, server.At)
	}
	pods := b.pods(t)
	for _, pod := range pods {
		for _, server := range refused {
			_, err := b.AskIn(t.Context(), &pod, probe.TCP, server)
			must(t, err)
		}
	}

	must(t, b.Apply(t.Context(), b.app.Namespace, fmt.Appendf(nil, egressPolicy, egressPort)))
	for _, pod := range pods {
		for _, server := range refused {
			must(t, testbed.Until(t.Context(), soon, "the policy to refuse", func(ctx context.Context) error {
				from, err := b.AskIn(ctx, &pod, probe.TCP, server)
				if err == nil {
					return fmt.Errorf("%s reaches %s from %s", pod.Name, server, from)
				}
				return nil
			}))
		}
	}
	b.testSources(t)
}
