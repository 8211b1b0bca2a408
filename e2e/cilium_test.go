//go:build e2e && plugins

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// besideCilium are the cases with Cilium and kube-proxy: all clients pass kube-proxy and Holdfast's filter.
var besideCilium = []testCase{
	{"Reach", testReach},
	{"LocalArrives", testLocalArrives},
	{"Warned", testCiliumWarned},
	{"FilterRanges", testFilterRanges},
	{"FilterInside", testFilterInside},
	{"BGPDrain", testBGPDrain},
	{"SpeakerRestart", testSpeakerRestart},
	{"L2", pluginFaults},
	{"NodeLoss", testNodeLoss},
}

// inPlace are the cases with Cilium in place of kube-proxy.
var inPlace = []testCase{
	{"Reach", testReach},
	{"Ranges", testCiliumRanges},
	{"OtherRanges", testOtherRanges},
	{"BGPDrain", testBGPDrain},
	{"SpeakerRestart", testSpeakerRestart},
	{"L2", pluginFaults},
	{"NodeLoss", testNodeLoss},
	{"Quiet", pluginQuiet},
}

// testCiliumRanges has Services whose ranges admit no client. Cilium keeps clients outside out in every way, and no
// pods.
func testCiliumRanges(t *testing.T, e *env) {
	inside := e.app
	inside.Name, inside.Nodes, inside.Replicas = "inside", e.workers()[:1], 1
	must(t, e.Deploy(t.Context(), inside))
	pods, err := e.AppPods(t.Context(), inside)
	must(t, err)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			name := "ranges-" + w.name
			addresses := e.service(t, e.app, name, append(slices.Clone(w.changes), from(unusedRanges...))...)
			e.shut(t, w.host, addresses)
			e.withinCluster(t, pods, addresses, anAnswer)

			own := e.hostRanges(t, w.host, addresses)
			e.setSources(t, name, own)
			e.open(t, w.host, addresses)
			e.setSources(t, name, own[:1])
			e.shut(t, w.host, addresses[1:])
			e.open(t, w.host, addresses[:1])
		})
	}
}

// testCiliumWarned waits until every speaker reports that Cilium bypasses its filter.
func testCiliumWarned(t *testing.T, e *env) {
	must(t, testbed.Until(t.Context(), time.Minute, "the warning of all speakers", func(ctx context.Context) error {
		for _, node := range e.Cluster.Nodes() {
			if err := e.hasProblem(ctx, node, "FilterNotEnforceable", 1); err != nil {
				return fmt.Errorf("node %s: %w", node, err)
			}
		}
		return nil
	}))
}

// testOtherRanges gives ranges that nothing enforces to a pool and to a Service: neither is announced. Of
// spec.loadBalancerSourceRanges the condition says who enforces them.
func testOtherRanges(t *testing.T, e *env) {
	e.service(t, e.app, "plugin-ranges", from(unusedRanges...))
	e.waitCondition(t, e.app.Namespace, "plugin-ranges", v1beta1.ConditionFiltered, metav1.ConditionFalse,
		"FilterNotEnforceable")

	e.apply(t, object("IPAddressPool", "e2e-plugin",
		`{addresses: [172.30.0.214, "fd00:30::3:9"], autoAssign: false, sourceRanges: [0.0.0.0/0, "::/0"]}`))
	e.valid(t, testbed.Pools, "e2e-plugin", metav1.ConditionFalse, "FilterNotEnforceable")
	e.apply(t, object("L2Advertisement", "e2e-plugin", `{ipAddressPools: [e2e-plugin]}`))
	closed := e.service(t, e.app, "plugin-pool", pool("e2e-plugin"))
	e.waitCondition(t, e.app.Namespace, "plugin-pool", v1beta1.ConditionAnnouncedL2, metav1.ConditionFalse,
		"FilterNotEnforceable")
	e.silent(t, closed)

	annotated := e.service(t, e.app, "plugin-annotated", routed, annotation(sourcesAnnotation, "0.0.0.0/0,::/0"))
	e.waitCondition(t, e.app.Namespace, "plugin-annotated", v1beta1.ConditionAnnouncedBGP, metav1.ConditionFalse,
		"FilterNotEnforceable")
	e.hops(t, annotated, 0)
}
