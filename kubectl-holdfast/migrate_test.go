package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/apitest"
	"sigs.k8s.io/yaml"
)

// invoke runs the plugin, and returns its exit status and what it printed.
func invoke(t *testing.T, args ...string) (status int, out, report string) {
	t.Helper()
	root := newRoot()
	var stdout, stderr bytes.Buffer
	root.SetArgs(args)
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	switch err := root.ExecuteContext(t.Context()); {
	case err == nil:
	case errors.Is(err, errProblem):
		status = statusProblem
	default:
		status = statusError
		stderr.WriteString(err.Error())
	}
	return status, stdout.String(), stderr.String()
}

// server answers with these lists, by path, and returns the flag that names it.
func server(t *testing.T, lists map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		items, known := lists[r.URL.Path]
		if text := discovered(r.URL.Path, lists); text != "" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(text))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if !known {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`))
			return
		}
		list := `"kind": "List", "apiVersion": "v1"`
		if version, resource, of := strings.Cut(strings.TrimPrefix(r.URL.Path, "/apis/metallb.io/"), "/"); of && version != r.URL.Path {
			list = fmt.Sprintf(`"kind": "%sList", "apiVersion": "metallb.io/%s"`, metalLBKinds[resource], version)
		}
		_, _ = w.Write([]byte(`{` + list + `, "metadata": {}, "items": [` + items + `]}`))
	}))
	t.Cleanup(s.Close)
	t.Setenv("KUBECACHEDIR", t.TempDir())
	return "--server=" + s.URL
}

var metalLBKinds = map[string]string{"ipaddresspools": "IPAddressPool", "communities": "Community", "bfdprofiles": "BFDProfile", "bgppeers": "BGPPeer",
	"bgpadvertisements": "BGPAdvertisement", "l2advertisements": "L2Advertisement"}

// discovered is what the API server answers to who asks which of MetalLB's resources there are; "" to other questions.
func discovered(path string, lists map[string]string) string {
	version, of := strings.CutPrefix(path, "/apis/metallb.io/")
	switch {
	case path == "/api":
		return `{"kind": "APIVersions", "versions": []}`
	case path == "/apis":
		return `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "metallb.io", "preferredVersion": {"groupVersion": "metallb.io/v1beta1",
			"version": "v1beta1"}, "versions": [{"groupVersion": "metallb.io/v1beta1", "version": "v1beta1"},
			{"groupVersion": "metallb.io/v1beta2", "version": "v1beta2"}]}]}`
	case of && !strings.Contains(version, "/"):
		var resources []string
		for list := range lists {
			if name, found := strings.CutPrefix(list, path+"/"); found {
				resources = append(resources, fmt.Sprintf(`{"name": %q, "singularName": "", "namespaced": true, "kind": %q, "verbs": ["list"]}`, name,
					metalLBKinds[name]))
			}
		}
		return `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "metallb.io/` + version + `", "resources": [` + strings.Join(resources, ",") + `]}`
	}
	return ""
}

const (
	samplePool = `{"apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool", "metadata": {"name": "lan", "namespace": "metallb-system", "uid": "u",
		"creationTimestamp": "2026-01-02T03:04:05Z"}, "spec": {"addresses": ["192.0.2.0/28"]}}`
	samplePeer = `{"apiVersion": "metallb.io/v1beta2", "kind": "BGPPeer", "metadata": {"name": "r", "namespace": "metallb-system"},
		"spec": {"myASN": 64600, "peerASN": 64512, "peerAddress": "192.0.2.9", "enableGracefulRestart": true}, "status": {}}`
	sampleService = `{"metadata": {"name": "web", "namespace": "default"}, "spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1", "ports": [{"port": 80}]},
		"status": {"loadBalancer": {"ingress": [{"ip": "ADDRESS"}]}}}`
	converted = `apiVersion: v1
items:
- apiVersion: holdfast.dev/v1beta1
  kind: IPAddressPool
  metadata:
    name: lan
  spec:
    addresses:
    - 192.0.2.0/28
- apiVersion: holdfast.dev/v1beta1
  kind: BGPPeer
  metadata:
    name: r
  spec:
    enableGracefulRestart: true
    myASN: 64600
    peerASN: 64512
    peerAddress: 192.0.2.9
kind: List
`
)

// admitted are the items of a list by whether the API server admits them.
func admitted(t *testing.T, list string) (yes, no int) {
	t.Helper()
	crds, err := apitest.Read("1.31")
	var read struct{ Items []map[string]any }
	if err = errors.Join(err, yaml.Unmarshal([]byte(list), &read)); err != nil {
		t.Fatal(err)
	}
	for _, item := range read.Items {
		body, err := json.Marshal(item)
		must(t, err)
		for _, c := range crds {
			if c.Kind != item["kind"] {
				continue
			}
			if err := c.Check(body); err != nil {
				t.Log(err)
				no++
			} else {
				yes++
			}
		}
	}
	return yes, no
}

// TestMigrateMetalLB: objects go to standard output, as kubectl apply takes them, the report to standard error, and the status
// tells whether addresses stay.
func TestMigrateMetalLB(t *testing.T) {
	cluster := func(address string) map[string]string {
		return map[string]string{
			"/api/v1/services": strings.Replace(sampleService, "ADDRESS", address, 1), "/api/v1/nodes": "", "/api/v1/namespaces": "",
			"/apis/metallb.io/v1beta1/ipaddresspools": samplePool, "/apis/metallb.io/v1beta2/bgppeers": samplePeer,
			"/apis/metallb.io/v1beta1/communities": "", "/apis/metallb.io/v1beta1/bfdprofiles": "", "/apis/metallb.io/v1beta1/bgpadvertisements": "",
			"/apis/metallb.io/v1beta1/l2advertisements": "",
		}
	}
	good, bad := server(t, cluster("192.0.2.5")), server(t, cluster("203.0.113.5"))
	status, out, report := invoke(t, "migrate", "metallb", good)
	if diff := cmp.Diff(converted, out); diff != "" || status != statusHealthy || !strings.Contains(report, "1 of 1 Services keep theirs") {
		t.Errorf("status %d, %s\n-want +got\n%s", status, report, diff)
	}
	if status, out, _ = invoke(t, "migrate", "metallb", good, "--only", "Community,BGPPeer"); status != statusHealthy ||
		!strings.Contains(out, "kind: BGPPeer") || strings.Contains(out, "kind: IPAddressPool") {
		t.Errorf("status %d, %s", status, out)
	}
	status, out, report = invoke(t, "migrate", "metallb", bad, "-o", "json")
	if status != statusProblem || !json.Valid([]byte(out)) || !json.Valid([]byte(report)) ||
		!strings.Contains(out, `"kind": "List"`) || !strings.Contains(report, "ForeignAddress") {
		t.Errorf("%d %s %s", status, out, report)
	}
	if status, out, report = invoke(t, "migrate", "metallb", good, "--check"); status != statusHealthy || report != "" || !strings.Contains(out, "keep theirs") {
		t.Errorf("%d %s %s", status, out, report)
	}
	// A file may have more than MetalLB's objects.
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte("{apiVersion: v1, kind: Service, metadata: {name: web}}\n---\n"+
		"{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: lan}, spec: {addresses: [192.0.2.0/24]}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, out, report = invoke(t, "migrate", "metallb", good, "-f", file); strings.Contains(out, "kind: Service") ||
		!strings.Contains(out, "kind: IPAddressPool") ||
		!strings.Contains(report, "it is no object of MetalLB") {
		t.Errorf("%s %s", out, report)
	}
	// After the move the addresses are compared with those before; MetalLB may be gone.
	before := filepath.Join(t.TempDir(), "before.gz")
	if status, _, report = invoke(t, "bundle", before, good); status != statusHealthy {
		t.Fatal(report)
	}
	moved := cluster("192.0.2.6")
	delete(moved, "/apis/metallb.io/v1beta2/bgppeers")
	moved["/apis/holdfast.dev/v1beta1/ipaddresspools"] = samplePool
	if status, out, report = invoke(t, "migrate", "metallb", server(t, moved), "--check", "--since", before); status != statusProblem ||
		!strings.Contains(out, "default/web had 192.0.2.5: Assigned: has 192.0.2.6") {
		t.Errorf("%d %s %s", status, out, report)
	}
	if status, _, report = invoke(t, "migrate", "metallb", server(t, moved)); status != statusError || !strings.Contains(report, "bgppeers") {
		t.Errorf("%d %s", status, report)
	}
	if status, _, report = invoke(t, "migrate", "metallb", "--server=http://127.0.0.1:1"); status != statusError || report == "" {
		t.Errorf("%d %s", status, report)
	}
}

// TestMigrateFiles: without a cluster, MetalLB's objects come from files, of both versions; with a bundle Services come from it.
func TestMigrateFiles(t *testing.T) {
	dir := t.TempDir()
	file, bundle := filepath.Join(dir, "metallb.yaml"), filepath.Join(dir, "bundle.gz")
	must(t, os.WriteFile(file, []byte(samplePool+"\n---\n"+strings.Replace(samplePeer, "v1beta2", "v1beta1", 1)), 0o600))
	status, out, report := invoke(t, "migrate", "metallb", "--server=http://127.0.0.1:1", "-f", file)
	if diff := cmp.Diff(converted, out); diff != "" || status != statusHealthy {
		t.Errorf("status %d, %s\n-want +got\n%s", status, report, diff)
	}
	services := map[string]string{"/api/v1/services": strings.Replace(sampleService, "ADDRESS", "203.0.113.5", 1)}
	if status, _, report := invoke(t, "bundle", bundle, server(t, services)); status != statusHealthy {
		t.Fatal(report)
	}
	if status, _, report := invoke(t, "migrate", "metallb", "--from", bundle, "-f", file); status != statusProblem ||
		!strings.Contains(report, "default/web had 203.0.113.5") {
		t.Errorf("%d %s", status, report)
	}
	if status, _, report := invoke(t, "migrate", "metallb", "-f", file+".none"); status != statusError || !strings.Contains(report, "does not exist") {
		t.Errorf("%d %s", status, report)
	}
}

// TestMigrateSamples: every object of MetalLB's own samples is printed, but for the two with a VRF.
func TestMigrateSamples(t *testing.T) {
	const samples = "../internal/config/testdata/metallb-v0.16.2.yaml"
	text, err := os.ReadFile(samples)
	must(t, err)
	status, out, report := invoke(t, "migrate", "metallb", "-f", samples)
	want := strings.Count(string(text), "apiVersion: metallb.io/") - 2
	got, no := admitted(t, out)
	if status != statusProblem || got != want || no != 0 || strings.Count(report, "sessions within a VRF") != 3 {
		t.Errorf("%d, %d of %d objects, %s", status, got, want, report)
	}
}

// TestMigrateOpenStack reads the example of the cloud controller manager's documentation.
func TestMigrateOpenStack(t *testing.T) {
	cluster := server(t, map[string]string{
		"/api/v1/services": strings.Replace(strings.Replace(sampleService, "ADDRESS", "203.0.113.5", 1), `"name": "web"`,
			`"name": "web", "annotations": {"loadbalancer.openstack.org/class": "internetFacing"}`, 1),
	})
	status, out, report := invoke(t, "migrate", "openstack", "--cloud-conf", "testdata/cloud.conf", cluster)
	const want = `
- apiVersion: holdfast.dev/v1beta1
  kind: IPAddressPool
  metadata:
    name: internetfacing
  spec:
    addresses:
    - 203.0.113.5
    aliases:
    - c57af0a0-da92-49be-a98a-345ceca004b3
    - f90d2440-d3c6-417a-a696-04e55eeb9279
    classes:
    - internetFacing
    scope: External
`
	if status != statusProblem || !strings.Contains(out, want) || strings.Count(out, "kind: IPAddressPool\n") != 4 ||
		!strings.Contains(out, "kind: FloatingIP\n") || !strings.Contains(out, "a02eb6c3-fc69-46ae-a3fe-fb43c1563cbc") ||
		!strings.Contains(report, "1 of 1 Services keep theirs") {
		t.Errorf("%d\n%s\n%s", status, out, report)
	}
	if yes, no := admitted(t, out); yes != 2 || no != 3 { // three pools lack their addresses
		t.Errorf("%d objects are admitted, %d are not", yes, no)
	}
	conf := filepath.Join(t.TempDir(), "cloud.conf")
	must(t, os.WriteFile(conf, []byte("[LoadBalancer]\nmax-shared-lb=5\ninternal-lb\nnode-selector=\"a=b, c=d\"\n"), 0o600))
	_, out, report = invoke(t, "migrate", "openstack", "--cloud-conf", conf, cluster)
	if !strings.Contains(report, `openStack: {maxShared: 5, internal: true, nodeSelector: "a=b, c=d"}`) || !strings.Contains(out, "scope: Internal") {
		t.Errorf("%s\n%s", out, report)
	}
	for _, args := range [][]string{{}, {"--cloud-conf", "testdata/none"}, {"--cloud-conf", "migrate_test.go"}} {
		if status, _, report := invoke(t, append([]string{"migrate", "openstack", cluster}, args...)...); status != statusError || report == "" {
			t.Errorf("%v: %d %s", args, status, report)
		}
	}
}
