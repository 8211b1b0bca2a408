package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
		w.Header().Set("Content-Type", "application/json")
		if !known {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`))
			return
		}
		_, _ = w.Write([]byte(`{"kind": "List", "apiVersion": "v1", "metadata": {}, "items": [` + items + `]}`))
	}))
	t.Cleanup(s.Close)
	return "--server=" + s.URL
}

const (
	samplePool = `{"apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool", "metadata": {"name": "lan", "namespace": "metallb-system", "uid": "u",
		"creationTimestamp": "2026-01-02T03:04:05Z"}, "spec": {"addresses": ["192.0.2.0/28"]}}`
	samplePeer = `{"apiVersion": "metallb.io/v1beta2", "kind": "BGPPeer", "metadata": {"name": "r", "namespace": "metallb-system"},
		"spec": {"myASN": 64600, "peerASN": 64512, "peerAddress": "192.0.2.9", "enableGracefulRestart": true}, "status": {}}`
	sampleService = `{"metadata": {"name": "web", "namespace": "default"}, "spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1", "ports": [{"port": 80}]},
		"status": {"loadBalancer": {"ingress": [{"ip": "ADDRESS"}]}}}`
	converted = `apiVersion: holdfast.dev/v1beta1
kind: IPAddressPool
metadata:
  name: lan
spec:
  addresses:
  - 192.0.2.0/28
---
apiVersion: holdfast.dev/v1beta1
kind: BGPPeer
metadata:
  name: r
spec:
  enableGracefulRestart: true
  myASN: 64600
  peerASN: 64512
  peerAddress: 192.0.2.9
`
)

// TestMigrateMetalLB: objects go to standard output, as kubectl apply takes them, the report to standard error, and the status
// tells whether addresses stay.
func TestMigrateMetalLB(t *testing.T) {
	cluster := func(address string) map[string]string {
		return map[string]string{
			"/api/v1/services": strings.Replace(sampleService, "ADDRESS", address, 1), "/api/v1/nodes": "", "/api/v1/namespaces": "",
			"/apis/metallb.io/v1beta1/ipaddresspools": samplePool, "/apis/metallb.io/v1beta2/bgppeers": samplePeer,
		}
	}
	good, bad := server(t, cluster("192.0.2.5")), server(t, cluster("203.0.113.5"))
	status, out, report := invoke(t, "migrate", "metallb", good)
	if diff := cmp.Diff(converted, out); diff != "" || status != statusHealthy || !strings.Contains(report, "1 of 1 Services keep theirs") {
		t.Errorf("status %d, %s\n-want +got\n%s", status, report, diff)
	}
	status, out, report = invoke(t, "migrate", "metallb", bad, "-o", "json")
	if status != statusProblem || !json.Valid([]byte(out)) || !json.Valid([]byte(report)) ||
		!strings.Contains(out, `"kind": "List"`) || !strings.Contains(report, "ForeignAddress") {
		t.Errorf("%d %s %s", status, out, report)
	}
	if status, out, report = invoke(t, "migrate", "metallb", good, "--check"); status != statusHealthy || report != "" || !strings.Contains(out, "keep theirs") {
		t.Errorf("%d %s %s", status, out, report)
	}
	// After the move the addresses are compared with those before; MetalLB may be gone.
	before := filepath.Join(t.TempDir(), "before.gz")
	if status, _, report = invoke(t, "bundle", before, good); status != statusHealthy {
		t.Fatal(report)
	}
	moved := cluster("192.0.2.6")
	delete(moved, "/apis/metallb.io/v1beta2/bgppeers")
	if status, out, report = invoke(t, "migrate", "metallb", server(t, moved), "--check", "--since", before); status != statusProblem ||
		!strings.Contains(out, "default/web had 192.0.2.5") || !strings.Contains(out, "unseen   bgppeers.metallb.io") {
		t.Errorf("%d %s %s", status, out, report)
	}
	if status, _, report = invoke(t, "migrate", "metallb", "--server=http://127.0.0.1:1"); status != statusError || report == "" {
		t.Errorf("%d %s", status, report)
	}
}

// TestMigrateFiles: without a cluster, objects and Services come from files.
func TestMigrateFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "metallb.yaml")
	service := `{"apiVersion": "v1", "kind": "Service", ` + strings.Replace(sampleService, "ADDRESS", "203.0.113.5", 1)[1:]
	other := `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}`
	text := strings.Join([]string{samplePool, other, strings.Replace(samplePeer, "v1beta2", "v1beta1", 1), service}, "\n---\n")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	status, out, report := invoke(t, "migrate", "metallb", "--server=http://127.0.0.1:1", "-f", file)
	if diff := cmp.Diff(converted, out); diff != "" || status != statusProblem || !strings.Contains(report, "default/web had 203.0.113.5") {
		t.Errorf("status %d, %s\n-want +got\n%s", status, report, diff)
	}
	if status, _, report := invoke(t, "migrate", "metallb", "-f", file+".none"); status != statusError || !strings.Contains(report, "does not exist") {
		t.Errorf("%d %s", status, report)
	}
}
