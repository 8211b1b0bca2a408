package main

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// incident is the bundle of a user: of two Services one waits for an address, and the filter of the other's speaker is
// not in force.
func incident(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("testdata/incident.json")
	must(t, err)
	name := filepath.Join(t.TempDir(), "incident.gz")
	f, err := os.Create(name)
	must(t, err)
	defer f.Close()
	w := gzip.NewWriter(f)
	_, err = w.Write(text)
	must(t, errors.Join(err, w.Close()))
	return name
}

// TestReplay: the bundle of an incident explains it without a cluster, and gives the plan of what would help and of
// what would not.
func TestReplay(t *testing.T) {
	from := incident(t)
	pool := filepath.Join(t.TempDir(), "pool.yaml")
	must(t, os.WriteFile(pool,
		[]byte(`{apiVersion: holdfast.dev/v1beta1, kind: IPAddressPool, metadata: {name: lan}, spec: {addresses: `+
			`[192.0.2.1-192.0.2.2]}}`), 0o600))
	copied := filepath.Join(t.TempDir(), "copy.gz")
	for _, tt := range []struct {
		args   string
		status int
		want   []string
	}{
		{"why default/late", statusProblem, []string{"First: Add addresses to a pool"}},
		{"why default/web",
			statusProblem, []string{"problem  speaker n2", "192.0.2.1 is announced on eth0; filter on: true, in force: false; ",
				"First: look at kubectl -n holdfast-system logs speaker-n2"}},
		{"why --probe default/web", statusError, []string{"--probe asks a cluster"}},
		{"plan -f " + pool, statusHealthy,
			[]string{
				`default/late: PoolExhausted: no IPv4 address: pool "lan" is full -> Assigned: has 192.0.2.2 from pool "lan"`,
				"default/late: not announced -> layer 2: none (NoServingEndpoint)",
			}},
		{"plan --drain n2", statusProblem,
			[]string{"default/web: 192.0.2.1 by node n2 -> layer 2: none (NoServingEndpoint)"}},
		{"plan --drain n1", statusHealthy, []string{"Nothing would change."}},
		{"why svc/web", statusProblem, []string{"Service default/web"}},
		{"why service/web -n default", statusProblem, []string{"Service default/web"}},
		{"why web", statusProblem, []string{"Service default/web"}},
		{"why services default/web", statusProblem, []string{"Service default/web"}},
		{"why svc late -n default", statusProblem, []string{"Service default/late"}},
		{"why svc/web -n other", statusProblem, []string{"Service other/web", "First: look at kubectl get services"}},
		{"why thing web", statusError, []string{`unknown kind "thing"`}},
		{"plan --drain n9", statusError, []string{`there is no node "n9" to drain`}},
		{"plan --drain=", statusError, []string{`there is no node "" to drain`}},
		{"migrate metalb", statusError, []string{`unknown load balancer "metalb"`}},
		{"migrate", statusError, []string{"metallb and openstack are known"}},
		{"migrate metallb -f " + pool + " --only IPAddresPool", statusError, []string{`unknown kind "IPAddresPool"`}},
		{"bundle " + copied, statusHealthy, []string{"left out: Secrets are not read"}},
		{"status", statusProblem, []string{"First: kubectl holdfast why default/late"}},
	} {
		says(t, tt.status, tt.want, append(strings.Fields(tt.args), "--from", from)...)
	}
	says(t, statusProblem, []string{"speaker n2"}, "why", "default/web", "--from", copied)
}

// TestPages: a daemon that is down or on a dead node, for which the API server waits, and a missing right are noted,
// and delay nothing.
func TestPages(t *testing.T) {
	hang, done := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/dead") {
			<-hang
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(
			`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "no right", "code": 403}`,
		))
	}))
	defer s.Close()
	defer close(hang)
	config := &rest.Config{Host: s.URL}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	must(t, err)
	r := &reader{config: config, client: client.RESTClient(), timeout: 200 * time.Millisecond}
	var pods []*corev1.Pod
	for _, name := range []string{"dead", "dead-too", "other"} {
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-system", Name: name}})
	}
	var snapshot Snapshot
	go func() {
		defer close(done)
		r.readPages(t.Context(), pods, &snapshot)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("it hangs")
	}
	got, _ := json.Marshal(snapshot.Silent)
	if !strings.Contains(snapshot.Silent["dead"], "no answer within 200ms") ||
		!strings.Contains(snapshot.Silent["other"], "no right") ||
		len(snapshot.Daemons) > 0 {
		t.Errorf("silent are %s", got)
	}
}

// TestDebugPort: a daemon's debug pages are where its arguments say, and where it has them by default.
func TestDebugPort(t *testing.T) {
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: []string{"--health-listen=127.0.0.1:1"}}}},
	}
	if port := debugPort(pod); port != "9219" {
		t.Error(port)
	}
	pod.Spec.Containers[0].Args = append(pod.Spec.Containers[0].Args, "--debug-listen=127.0.0.1:9319",
		"-debug-listen=[::1]:9419")
	if port := debugPort(pod); port != "9419" {
		t.Error(port)
	}
}

// TestOpenStack: each network, subnet and class in use is a pool with the addresses in use, and an address of its own
// is a FloatingIP.
func TestOpenStack(t *testing.T) {
	cloud := Cloud{LoadBalancerClass: map[string]*CloudSection{
		"dmz":    {FloatingSubnet: "dmz-*", FloatingSubnetTags: "&fast, cheap"},
		"Office": {FloatingNetworkID: "net-2", FloatingSubnet: "office", FloatingSubnetTags: "!slow,bad"},
	}}
	cloud.LoadBalancer = CloudSection{FloatingNetworkID: "net-1", FloatingSubnetID: "sub-1", NetworkID: "net-i",
		SubnetID: "sub-i", MaxSharedLB: 3,
		NodeSelector: "env=production, region=default"}
	in := func(namespace, name, address string, annotations ...string) *corev1.Service {
		o := served(namespace, name, "", address)
		o.Annotations = map[string]string{occm + "load-balancer-id": "lb-" + address}
		for _, a := range annotations {
			key, value, _ := strings.Cut(a, "=")
			o.Annotations[key] = value
		}
		return o
	}
	named := in("a", "named", "", occm+"hostname=www.example.com", occm+"load-balancer-address=192.0.2.9")
	named.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "www.example.com"}}
	second := in("b", "second", "192.0.2.2")
	second.Spec.Ports[0].Port = 81
	s := fresh(in("a", "plain", "192.0.2.1", occm+"lb-method=SOURCE_IP"), in("a", "first", "192.0.2.2"), second, named,
		in("a", "kept", "192.0.2.3", occm+"keep-floatingip=true", occm+"floating-subnet-id=sub-1"),
		in("a", "dmz", "192.0.2.17", occm+"class=dmz"),
		in("a", "inner", "10.0.9.1", "service.beta.kubernetes.io/openstack-internal-load-balancer=true"),
		in("a", "chosen", "198.51.100.1", occm+"floating-network-id=NET-3"))
	m := s.OpenStack(cloud, s.Objects.Services)
	var got []string
	for _, o := range m.Objects {
		text := rendered(t, o)
		got = append(got, strings.TrimPrefix(text, "apiVersion: holdfast.dev/v1beta1|kind: "))
	}
	fip := func(name, address, policy string) string {
		return "FloatingIP|metadata:|  name: " + name + "|  namespace: a|spec:|  addresses:|  - " + address +
			"|  reclaimPolicy: " + policy + "|  serviceName: " +
			name
	}
	want := []string{
		"IPAddressPool|metadata:|  name: dmz|spec:|  addresses:|  - 192.0.2.17|  aliases:|  - net-1|  classes:|  - dmz|  " +
			"scope: External|  tags:|" +
			"  - fast|  - cheap",
		"IPAddressPool|metadata:|  name: net-3|spec:|  addresses:|  - 198.51.100.1|  aliases:|  - NET-3|  scope: External",
		"IPAddressPool|metadata:|  name: office|spec:|  addresses: null|  aliases:|  - net-2|  - office|  classes:|  - " +
			"Office|  scope: External",
		"IPAddressPool|metadata:|  name: openstack|spec:|  addresses:|  - 192.0.2.2|  - 192.0.2.3|  - 192.0.2.9|  - " +
			"192.0.2.1|  aliases:|  - net-1|  - sub-1|" +
			"  scope: External",
		"IPAddressPool|metadata:|  name: openstack-internal|spec:|  addresses:|  - 10.0.9.1|  aliases:|  - net-i|  - " +
			"sub-i|  scope: Internal",
		fip("chosen", "198.51.100.1", "Delete"), fip("dmz", "192.0.2.17", "Delete"), fip("kept", "192.0.2.3", "Retain"),
		fip("named", "192.0.2.9", "Delete"),
		fip("plain", "192.0.2.1", "Delete"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	steps := []string{
		`chart note install Holdfast with the values openStack: {maxShared: 3, internal: false, nodeSelector: "env=production, region=default"}`,
		"IPAddressPool office problem no Service has an address of it: write the ranges of its subnet, or leave it out",
		"pools note they hold the addresses in use: add the other ranges of their subnets, and the names and tags that " +
			"patterns match",
		"Service a/plain note lb-method does nothing: kube-proxy chooses the pod",
	}
	if diff := cmp.Diff(steps, reported(m)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
