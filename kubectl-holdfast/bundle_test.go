package main

import (
	"compress/gzip"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// incident is the bundle of a user: of two Services one waits for an address, and the filter of the other's speaker is not in force.
func incident(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("testdata/incident.json")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "incident.gz")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := gzip.NewWriter(f)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestReplay: the bundle of an incident explains it without a cluster, and gives the plan of what would help and of what would not.
func TestReplay(t *testing.T) {
	from := incident(t)
	pool := filepath.Join(t.TempDir(), "pool.yaml")
	if err := os.WriteFile(pool, []byte(`{apiVersion: holdfast.dev/v1beta1, kind: IPAddressPool, metadata: {name: lan}, spec: {addresses: `+
		`[192.0.2.1-192.0.2.2]}}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copy.gz")
	for _, tt := range []struct {
		args   string
		status int
		want   []string
	}{
		{"why default/late", statusProblem, []string{"First: no IPv4 address: pool \"lan\" is full: add addresses to the pool"}},
		{"why default/web", statusProblem, []string{"problem  speaker n2", "First: 192.0.2.1 is announced on eth0; filter on: true, in force: false; "}},
		{"why --probe default/web", statusError, []string{"--probe asks a cluster"}},
		{"plan -f " + pool, statusHealthy, []string{`default/late: PoolExhausted: no IPv4 address: pool "lan" is full -> Assigned: has 192.0.2.2 from pool "lan"`,
			"default/late: not announced -> layer 2: none (NoServingEndpoint)"}},
		{"plan --drain n2", statusHealthy, []string{"default/web: 192.0.2.1 by node n2 -> layer 2: none (NoServingEndpoint)"}},
		{"plan --drain n1", statusHealthy, []string{"Nothing would change."}},
		{"bundle " + copied, statusHealthy, []string{"left out: Secrets are not read"}},
		{"status", statusProblem, []string{"First: kubectl holdfast why default/late"}},
	} {
		status, out, report := invoke(t, append(strings.Fields(tt.args), "--from", from)...)
		missing := slices.DeleteFunc(tt.want, func(w string) bool { return strings.Contains(out+report, w) })
		if status != tt.status || len(missing) > 0 {
			t.Errorf("%s: status %d, without %q:\n%s%s", tt.args, status, missing, out, report)
		}
	}
	if status, out, report := invoke(t, "why", "default/web", "--from", copied); status != statusProblem || !strings.Contains(out, "speaker n2") {
		t.Errorf("the copy says (%d) %s%s", status, out, report)
	}
}

// TestPages: a daemon that is down or on a dead node, for which the API server waits, and a missing right are noted, and delay nothing.
func TestPages(t *testing.T) {
	hang, done := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/dead") {
			<-hang
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "no right", "code": 403}`))
	}))
	defer s.Close()
	defer close(hang)
	config := &rest.Config{Host: s.URL}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{config: config, client: client.RESTClient(), patience: 200 * time.Millisecond}
	var pods []*corev1.Pod
	for _, name := range []string{"dead", "dead-too", "other"} {
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-system", Name: name}})
	}
	var snapshot Snapshot
	go func() {
		defer close(done)
		r.pages(t.Context(), pods, &snapshot)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("it hangs")
	}
	got, _ := json.Marshal(snapshot.Silent)
	if !strings.Contains(snapshot.Silent["dead"], "no answer within 200ms") || !strings.Contains(snapshot.Silent["other"], "no right") ||
		len(snapshot.Daemons) > 0 {
		t.Errorf("silent are %s", got)
	}
}

// TestDebugPort: a daemon's debug pages are where its arguments say, and where it has them by default.
func TestDebugPort(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: []string{"--health-listen=127.0.0.1:1"}}}}}
	if port := debugPort(pod); port != "9219" {
		t.Error(port)
	}
	pod.Spec.Containers[0].Args = append(pod.Spec.Containers[0].Args, "--debug-listen=127.0.0.1:9319", "-debug-listen=[::1]:9419")
	if port := debugPort(pod); port != "9419" {
		t.Error(port)
	}
}
