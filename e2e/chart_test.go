//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// testChart upgrades, rolls back, uninstalls and reinstalls the chart.
func testChart(t *testing.T, e *env) {
	e.routeByLAN(t, e.workers()...)
	l2 := e.service(t, e.app, "chart-l2", annotation(egressAnnotation, "true"))
	bgp := e.service(t, e.app, "chart-bgp", routed)
	e.served(t, testbed.Client, l2)
	e.served(t, testbed.Far, bgp)
	e.hops(t, bgp, len(e.workers()))
	e.sendsOut(t, "chart-l2")
	e.floating(t, "outlives", `{ipFamilies: [IPv6]}`)
	undo(t, func(ctx context.Context) error {
		return e.Resource(testbed.FloatingIPs).Namespace(e.app.Namespace).Delete(ctx, "outlives", metav1.DeleteOptions{})
	})
	before := e.kept(t)
	t.Run("upgrade with the same values", func(t *testing.T) { e.upgrade(t) })
	e.keeps(t, before)
	t.Run("upgrade of definitions", func(t *testing.T) { e.upgradeDefinitions(t) })
	e.keeps(t, before)
	t.Run("roll back", func(t *testing.T) {
		_, err := e.Helm(t.Context(), "rollback", testbed.Release, "--namespace", testbed.Namespace, "--wait")
		must(t, err)
		must(t, e.WaitReady(t.Context()))
	})
	e.keeps(t, before)
	t.Run("uninstall", func(t *testing.T) { e.uninstall(t, l2, bgp) })
	e.keeps(t, before)
	t.Run("install again", func(t *testing.T) {
		must(t, e.Install(t.Context()))
		must(t, e.WaitReady(t.Context()))
		e.keeps(t, before)
		e.served(t, testbed.Client, l2)
		e.served(t, testbed.Far, bgp)
		e.hops(t, bgp, len(e.workers()))
		e.sendsOut(t, "chart-l2")
	})
}

// sendsOut waits until the pods of a Service send from its addresses.
func (e *env) sendsOut(t *testing.T, service string) {
	t.Helper()
	e.waitCondition(t, e.app.Namespace, service, v1beta1.ConditionEgress, metav1.ConditionTrue, "EgressActive")
}

// kept returns what outlives the chart, with its identity: definitions, pools, FloatingIPs, and the addresses of
// Services.
func (e *env) kept(t *testing.T) string {
	t.Helper()
	crds, err := e.Kubectl(t.Context(), "get", "customresourcedefinitions", "--no-headers", "-o",
		"custom-columns=name:.metadata.name,uid:.metadata.uid")
	must(t, err)
	out, err := e.Kubectl(t.Context(), "get", "ipaddresspools,floatingips,services", "-A", "--no-headers",
		"-o", "custom-columns=kind:.kind,"+
			"namespace:.metadata.namespace,name:.metadata.name,uid:.metadata.uid,spec:.spec.addresses,"+
			"floating:.status.addresses,ingress:.status.loadBalancer.ingress[*].ip")
	must(t, err)
	for line := range strings.Lines(crds) {
		if strings.Contains(line, ".holdfast.dev ") {
			out += line
		}
	}
	if strings.Count(out, ".holdfast.dev") < 9 || strings.Count(out, "FloatingIP ") < 1 ||
		strings.Count(out, "IPAddressPool ") < 2 {
		t.Fatalf("what is to be kept is not there:\n%s", out)
	}
	return out
}

// keeps checks that what outlives the chart is there as before. Another version may bring more definitions, with wider
// columns.
func (e *env) keeps(t *testing.T, before string) {
	t.Helper()
	after := map[string]bool{}
	for line := range strings.Lines(e.kept(t)) {
		after[strings.Join(strings.Fields(line), " ")] = true
	}
	for line := range strings.Lines(before) {
		if !after[strings.Join(strings.Fields(line), " ")] {
			t.Errorf("not there any more, or changed: %swhat is there: %v", line, slices.Sorted(maps.Keys(after)))
		}
	}
}

// upgradeDefinitions installs the chart over a definition of an earlier version: with a rule that the chart's lacks,
// written as Helm does.
func (e *env) upgradeDefinitions(t *testing.T) {
	const crd, schema = "floatingips.holdfast.dev", "/spec/versions/0/schema/openAPIV3Schema"
	get := func() string {
		out, err := e.Kubectl(t.Context(), "get", "customresourcedefinition", crd, "-o",
			"jsonpath={.spec}{.metadata.annotations}")
		must(t, err)
		return out
	}
	want := get()
	_, err := e.Kubectl(t.Context(), "patch", "customresourcedefinition", crd, "--field-manager", "helm", "--type", "json",
		"-p",
		`[{"op":"add","path":"`+schema+
			`/x-kubernetes-validations","value":[{"rule":"self.metadata.name != 'never'","message":"of an earlier version"}]},`+
			`{"op":"replace","path":"`+schema+
			`/description","value":"of an earlier version"},{"op":"remove","path":"/metadata/annotations"}]`)
	must(t, err)
	if get() == want {
		t.Fatal("the definition is not another one")
	}
	must(t, e.Install(t.Context()))
	must(t, e.WaitReady(t.Context()))
	if diff := cmp.Diff(want, get()); diff != "" {
		t.Errorf("-chart's +cluster's\n%s", diff)
	}
}

// upgrade installs the chart with unchanged values, which must change no object.
func (e *env) upgrade(t *testing.T) {
	must(t, e.WaitReady(t.Context()))
	before := e.installed(t)
	must(t, e.Install(t.Context()))
	must(t, e.WaitReady(t.Context()))
	if diff := cmp.Diff(before, e.installed(t)); diff != "" {
		t.Errorf("-before +after\n%s", diff)
	}
}

// installed returns the versions of the chart's objects and the identities of its pods.
func (e *env) installed(t *testing.T) []string {
	t.Helper()
	// The resourceVersion of a workload changes with its status too; its generation changes with its spec only.
	var out []string
	for columns, kinds := range map[string]string{
		"generation:.metadata.generation": "deployments,daemonsets,poddisruptionbudgets",
		"version:.metadata.resourceVersion": "clusterroles,clusterrolebindings,roles,rolebindings," +
			"serviceaccounts",
		"uid:.metadata.uid,restarts:.status.containerStatuses[*].restartCount": "pods",
	} {
		text, err := e.Kubectl(t.Context(), "get", kinds, "-n", testbed.Namespace, "--sort-by=.metadata.name",
			"-l", "app.kubernetes.io/name=holdfast", "--no-headers", "-o",
			"custom-columns=kind:.kind,name:.metadata.name,"+columns)
		must(t, err)
		out = append(out, text)
	}
	lines := strings.Split(strings.Join(out, ""), "\n")
	if len(lines) < 10 {
		t.Fatalf("only %d objects are installed: %q", len(lines), lines)
	}
	slices.Sort(lines)
	return lines
}

// uninstall removes the chart. The user's objects must remain: pools, Services and their addresses.
func (e *env) uninstall(t *testing.T, l2, bgp []netip.Addr) {
	must(t, e.Uninstall(t.Context()))
	e.hops(t, bgp, 0)
	e.silent(t, l2)
	// Uninstall waits for the end of the pods; without a speaker process there is no BGP session.
	for _, router := range []string{testbed.Router1, testbed.Router2} {
		out, err := e.On(t.Context(), router, "ip", "route", "show", "proto", "bgp")
		must(t, err)
		if out != "" {
			t.Errorf("%s still has routes:\n%s", router, out)
		}
	}
	for _, node := range e.Cluster.Nodes() {
		tables, err := e.On(t.Context(), node, "nft", "list", "tables")
		must(t, err)
		if strings.Contains(tables, "holdfast") {
			t.Errorf("%s still has an nftables table of Holdfast:\n%s", node, tables)
		}
	}
	pools, err := e.Resource(testbed.Pools).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(pools.Items) < 2 {
		t.Errorf("%d pools are left, want the pools of the samples", len(pools.Items))
	}
	for _, p := range pools.Items {
		noFinalizer(t, "pool "+p.GetName(), p.GetFinalizers())
	}
	services, err := e.Kube.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range services.Items {
		noFinalizer(t, "Service "+services.Items[i].Name, services.Items[i].Finalizers)
	}
	e.sameAddresses(t, e.app.Namespace, "chart-l2", l2)
	left, err := e.Kubectl(t.Context(), "get",
		"deployments,daemonsets,jobs,clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts",
		"-A", "-l", "app.kubernetes.io/name=holdfast", "-o", "name")
	must(t, err)
	if left != "" {
		t.Errorf("objects of the chart are left:\n%s", left)
	}
}

func noFinalizer(t *testing.T, object string, finalizers []string) {
	t.Helper()
	for _, f := range finalizers {
		if strings.HasPrefix(f, "holdfast.dev/") || f == standardFinalizer {
			t.Errorf("%s still has finalizer %s", object, f)
		}
	}
}

// testPolicies makes writes that a compromised daemon might try, against each admission policy of the chart, and a
// write that each daemon makes. internal/house tests all rules of the policies.
func testPolicies(t *testing.T, e *env) {
	held := e.address(t, "policy")
	mine, theirs := e.workers()[0], e.workers()[1]
	speaker, err := e.AsSpeaker(mine)
	must(t, err)
	controller, err := e.As("system:serviceaccount:" + testbed.Namespace + ":" + testbed.Controller)
	must(t, err)
	pods, err := e.AppPods(t.Context(), e.app)
	must(t, err)
	service := func(as kubernetes.Interface, patch string, part ...string) error {
		_, err := as.CoreV1().Services(e.app.Namespace).Patch(t.Context(), "policy", types.StrategicMergePatchType,
			[]byte(patch), metav1.PatchOptions{}, part...)
		return err
	}
	pod := func(patch string) error {
		_, err := controller.CoreV1().Pods(e.app.Namespace).Patch(t.Context(), pods[0].Name, types.StrategicMergePatchType,
			[]byte(patch), metav1.PatchOptions{},
			"status")
		return err
	}
	state := func(node, status string) error {
		return speaker.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath("/apis/holdfast.dev/v1beta1",
			testbed.SpeakerStates, node, "status").
			Body([]byte(`{"status":` + status + `}`)).Do(t.Context()).Error()
	}
	condition := func(kind string) string {
		return fmt.Sprintf(
			`{"conditions":[{"type":%q,"status":"True","reason":"Test","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}`,
			kind,
		)
	}
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"speaker, addresses", service(speaker, `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`, "status"),
			"may not change the addresses"},
		{"speaker, metadata", service(speaker, `{"metadata":{"annotations":{"holdfast.dev/assigned":null}}}`, "status"),
			"may not change the metadata"},
		{"speaker, another's condition",
			service(speaker, `{"status":`+condition("holdfast.dev/AddressAssigned")+`}`, "status"),
			"conditions AnnouncedL2, Announcers, AnnouncedBGP and FilterEnforced only"},
		{"speaker, spec", service(speaker, `{"spec":{"type":"ClusterIP"}}`), `cannot patch resource "services"`},
		{"speaker, its condition", service(speaker, `{"status":`+condition("holdfast.dev/AnnouncedBGP")+`}`, "status"), ""},
		{"speaker, its SpeakerState", state(mine, `{"conflictCount":0}`), ""},
		{"speaker, another's SpeakerState", state(theirs, `{"conflictCount":0}`), "its own node only"},
		{"speaker, a condition of its SpeakerState", state(mine, condition("EndpointsWithdrawn")),
			"may not change the conditions"},
		{"controller, a label of a Service", service(controller, `{"metadata":{"labels":{"stolen":"yes"}}}`, "status"),
			"its finalizers in the metadata"},
		{"controller, another's condition", service(controller, `{"status":`+condition("example.org/Other")+`}`, "status"),
			"conditions of others"},
		{"controller, what it reads of a pod", pod(`{}`), ""},
		{"controller, a label of a pod", pod(`{"metadata":{"labels":{"stolen":"yes"}}}`), "metadata of a pod"},
		{"controller, the phase of a pod", pod(`{"status":{"phase":"Failed"}}`), "condition Ready of a pod only"},
		{"administrator, the record of an address",
			service(e.Kube, `{"status":`+condition("holdfast.dev/AddressRecord")+`}`, "status"), "AddressRecord"},
	} {
		if tc.want == "" && tc.err != nil || tc.want != "" && (tc.err == nil || !strings.Contains(tc.err.Error(), tc.want)) {
			t.Errorf("%s: got %v, want %q in it", tc.name, tc.err, tc.want)
		}
	}
	e.has(t, "policy", held)
}
