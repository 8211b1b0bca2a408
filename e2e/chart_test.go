//go:build e2e

package e2e

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testChart upgrades, rolls back, uninstalls and reinstalls the chart.
func testChart(t *testing.T, e *env) {
	l2 := e.service(t, e.app, "chart-l2")
	bgp := e.service(t, e.app, "chart-bgp", routed)
	e.served(t, testbed.Client, l2)
	e.served(t, testbed.Far, bgp)
	e.hops(t, bgp, len(e.workers()))
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
	})
}

// kept returns what outlives the chart, with its identity: definitions, pools, FloatingIPs, and the addresses of Services.
func (e *env) kept(t *testing.T) string {
	t.Helper()
	crds, err := e.Kubectl(t.Context(), "get", "customresourcedefinitions", "--no-headers", "-o", "custom-columns=name:.metadata.name,uid:.metadata.uid")
	must(t, err)
	out, err := e.Kubectl(t.Context(), "get", "ipaddresspools,floatingips,services", "-A", "--no-headers", "-o", "custom-columns=kind:.kind,"+
		"namespace:.metadata.namespace,name:.metadata.name,uid:.metadata.uid,spec:.spec.addresses,floating:.status.addresses,"+
		"ingress:.status.loadBalancer.ingress[*].ip")
	must(t, err)
	for line := range strings.Lines(crds) {
		if strings.Contains(line, ".holdfast.dev ") {
			out += line
		}
	}
	if strings.Count(out, ".holdfast.dev") < 9 || strings.Count(out, "FloatingIP ") < 1 || strings.Count(out, "IPAddressPool ") < 2 {
		t.Fatalf("what is to be kept is not there:\n%s", out)
	}
	return out
}

// keeps compares what outlives the chart with what was there before.
func (e *env) keeps(t *testing.T, before string) {
	t.Helper()
	if diff := cmp.Diff(before, e.kept(t)); diff != "" {
		t.Errorf("-before +after\n%s", diff)
	}
}

// upgradeDefinitions installs the chart over a definition of an earlier version: with a rule that the chart's lacks, written as Helm does.
func (e *env) upgradeDefinitions(t *testing.T) {
	const crd, schema = "floatingips.holdfast.dev", "/spec/versions/0/schema/openAPIV3Schema"
	get := func() string {
		out, err := e.Kubectl(t.Context(), "get", "customresourcedefinition", crd, "-o", "jsonpath={.spec}{.metadata.annotations}")
		must(t, err)
		return out
	}
	want := get()
	_, err := e.Kubectl(t.Context(), "patch", "customresourcedefinition", crd, "--field-manager", "helm", "--type", "json", "-p",
		`[{"op":"add","path":"`+schema+`/x-kubernetes-validations","value":[{"rule":"self.metadata.name != 'never'","message":"of an earlier version"}]},`+
			`{"op":"replace","path":"`+schema+`/description","value":"of an earlier version"},{"op":"remove","path":"/metadata/annotations"}]`)
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
		"generation:.metadata.generation":                                      "deployments,daemonsets,poddisruptionbudgets",
		"version:.metadata.resourceVersion":                                    "clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts",
		"uid:.metadata.uid,restarts:.status.containerStatuses[*].restartCount": "pods",
	} {
		text, err := e.Kubectl(t.Context(), "get", kinds, "-n", testbed.Namespace, "--sort-by=.metadata.name",
			"-l", "app.kubernetes.io/name=holdfast", "--no-headers", "-o", "custom-columns=kind:.kind,name:.metadata.name,"+columns)
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
	left, err := e.Kubectl(t.Context(), "get", "deployments,daemonsets,jobs,clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts",
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
