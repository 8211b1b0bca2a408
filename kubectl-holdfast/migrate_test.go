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
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/apitest"
	"github.com/holdfast-lb/holdfast/internal/lb"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// invoke runs the plugin, and returns its exit status and what it printed.
func invoke(t *testing.T, args ...string) (status int, out, report string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	root := newRoot(&stdout, &stderr)
	root.SetArgs(args)
	status = run(t.Context(), root)
	return status, stdout.String(), stderr.String()
}

// says runs the plugin, and fails the test without this exit status and these words in what is printed.
func says(t *testing.T, want int, words []string, args ...string) (out, report string) {
	t.Helper()
	status, out, report := invoke(t, args...)
	missing := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return strings.Contains(out+report, w) })
	if status != want || len(missing) > 0 {
		t.Errorf("%v: status %d, without %q:\n%s%s", args, status, missing, out, report)
	}
	return out, report
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
			_, _ = w.Write(
				[]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`),
			)
			return
		}
		list := `"kind": "List", "apiVersion": "v1"`
		if version, resource, of := strings.Cut(strings.TrimPrefix(r.URL.Path, "/apis/metallb.io/"), "/"); of &&
			version != r.URL.Path {
			list = fmt.Sprintf(`"kind": "%sList", "apiVersion": "metallb.io/%s"`, metalLBKinds[resource], version)
		}
		_, _ = w.Write([]byte(`{` + list + `, "metadata": {}, "items": [` + items + `]}`))
	}))
	t.Cleanup(s.Close)
	t.Setenv("KUBECACHEDIR", t.TempDir())
	return "--server=" + s.URL
}

var metalLBKinds = map[string]string{"ipaddresspools": "IPAddressPool", "communities": "Community",
	"bfdprofiles": "BFDProfile", "bgppeers": "BGPPeer",
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
				resources = append(resources,
					fmt.Sprintf(`{"name": %q, "singularName": "", "namespaced": true, "kind": %q, "verbs": ["list"]}`, name,
						metalLBKinds[name]))
			}
		}
		return `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "metallb.io/` + version +
			`", "resources": [` + strings.Join(resources, ",") + `]}`
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
	crds, err := apitest.Read()
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

// TestMigrateMetalLB: objects go to standard output, as kubectl apply takes them, the report to standard error, and the
// status tells whether addresses stay.
func TestMigrateMetalLB(t *testing.T) {
	cluster := func(address string) map[string]string {
		return map[string]string{
			"/api/v1/services": strings.Replace(sampleService, "ADDRESS", address, 1), "/api/v1/nodes": "",
			"/api/v1/namespaces":                      "",
			"/apis/metallb.io/v1beta1/ipaddresspools": samplePool, "/apis/metallb.io/v1beta2/bgppeers": samplePeer,
			"/apis/metallb.io/v1beta1/communities": "", "/apis/metallb.io/v1beta1/bfdprofiles": "",
			"/apis/metallb.io/v1beta1/bgpadvertisements": "",
			"/apis/metallb.io/v1beta1/l2advertisements":  "",
		}
	}
	good, bad := server(t, cluster("192.0.2.5")), server(t, cluster("203.0.113.5"))
	out, report := says(t, statusHealthy, []string{"1 of 1 Services keep theirs"}, "migrate", "metallb", good)
	if diff := cmp.Diff(converted, out); diff != "" || strings.Contains(out, "keep theirs") {
		t.Errorf("%s\n-want +got\n%s", report, diff)
	}
	out, _ = says(t, statusHealthy, []string{"kind: BGPPeer"}, "migrate", "metallb", good, "--only", "Community,BGPPeer")
	if strings.Contains(out, "IPAddressPool") {
		t.Error(out)
	}
	out, report = says(t, statusProblem, []string{`"kind": "List"`, "ForeignAddress"}, "migrate", "metallb", bad, "-o",
		"json")
	if !json.Valid([]byte(out)) || !json.Valid([]byte(report)) {
		t.Errorf("%s %s", out, report)
	}
	if _, report = says(t, statusHealthy, []string{"keep theirs"}, "migrate", "metallb", good, "--check"); report != "" {
		t.Error(report)
	}
	// A file may have more than MetalLB's objects.
	file := filepath.Join(t.TempDir(), "objects.yaml")
	must(t, os.WriteFile(file, []byte("{apiVersion: v1, kind: Service, metadata: {name: web}}\n---\n"+
		"{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: lan}, spec: {addresses: [192.0.2.0/24]}}"),
		0o600))
	out, _ = says(t, statusHealthy, []string{"kind: IPAddressPool", "1 objects that are no configuration of MetalLB"},
		"migrate", "metallb", good, "-f", file)
	if strings.Contains(out, "kind: Service") {
		t.Error(out)
	}
	for _, tt := range []struct {
		name, text string
		status     int
		want       []string
	}{
		{"what is not MetalLB's", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: apps}}\n---\n" +
			"{apiVersion: holdfast.dev/v1beta1, kind: IPAddressPool, metadata: {name: ours}}\n---\n" +
			"{apiVersion: metallb.io/v1beta1, kind: ServiceL2Status, metadata: {name: s}}\n---\n" +
			"{apiVersion: metallb.io/v1beta1, kind: L2Advertisement, metadata: {name: lan}}", statusHealthy,
			[]string{
				"3 objects that are no configuration of MetalLB", "Deployment apps/x", "IPAddressPool ours", "ServiceL2Status s",
				"kind: L2Advertisement",
			}},
		{"a kind of MetalLB's that is not known", "{apiVersion: metallb.io/v1beta1, kind: AddressPool, metadata: {name: x}}",
			statusError, []string{`kind "AddressPool"`}},
		{"one name in two namespaces",
			"{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: lan, namespace: a}, spec: {addresses: " +
				"[192.0.2.0/24]}}\n---\n" +
				"{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: lan, namespace: b}, spec: {addresses: " +
				"[198.51.100.0/24]}}", statusProblem,
			[]string{
				"left out in namespace b, because namespace a has one of this name", "First: give one of the two another name",
				"192.0.2.0/24",
			}},
		{"a password to copy", "{apiVersion: metallb.io/v1beta2, kind: BGPPeer, metadata: {name: r, namespace: mlb}, " +
			"spec: {myASN: 1, peerASN: 2, peerAddress: 192.0.2.9, passwordSecret: {name: p}}}", statusProblem,
			[]string{"First: copy the password: kubectl create secret generic p -n holdfast-system " +
				"--type=kubernetes.io/basic-auth --from-literal=password=" +
				`"$(kubectl get secret p -n mlb -o go-template='{{.data.password | base64decode}}')"`}},
	} {
		must(t, os.WriteFile(file, []byte(tt.text), 0o600))
		out, report := says(t, tt.status, tt.want, "migrate", "metallb", good, "-f", file)
		if strings.Contains(out, "198.51.100.0/24") || strings.Contains(out, "name: ours") {
			t.Errorf("%s:\n%s%s", tt.name, out, report)
		}
	}
	// After the move the addresses are compared with those before; MetalLB may be gone.
	before := filepath.Join(t.TempDir(), "before.gz")
	says(t, statusHealthy, nil, "bundle", before, good)
	moved := cluster("192.0.2.6")
	delete(moved, "/apis/metallb.io/v1beta2/bgppeers")
	moved["/apis/holdfast.dev/v1beta1/ipaddresspools"] = samplePool
	says(t, statusProblem, []string{"default/web had 192.0.2.5: Assigned: has 192.0.2.6"}, "migrate", "metallb",
		server(t, moved), "--check", "--since", before)
	says(t, statusError, []string{"bgppeers"}, "migrate", "metallb", server(t, moved))
	says(t, statusError, []string{"refused"}, "migrate", "metallb", "--server=http://127.0.0.1:1")
}

// TestMigrateFiles: without a cluster, MetalLB's objects come from files, of both versions; with a bundle Services come
// from it.
func TestMigrateFiles(t *testing.T) {
	dir := t.TempDir()
	file, bundle := filepath.Join(dir, "metallb.yaml"), filepath.Join(dir, "bundle.gz")
	must(t, os.WriteFile(file, []byte(samplePool+"\n---\n"+strings.Replace(samplePeer, "v1beta2", "v1beta1", 1)), 0o600))
	out, report := says(t, statusHealthy, nil, "migrate", "metallb", "--server=http://127.0.0.1:1", "-f", file)
	if diff := cmp.Diff(converted, out); diff != "" {
		t.Errorf("%s\n-want +got\n%s", report, diff)
	}
	services := map[string]string{"/api/v1/services": strings.Replace(sampleService, "ADDRESS", "203.0.113.5", 1)}
	says(t, statusHealthy, nil, "bundle", bundle, server(t, services))
	says(t, statusProblem, []string{"default/web had 203.0.113.5"}, "migrate", "metallb", "--from", bundle, "-f", file)
	says(t, statusError, []string{"does not exist"}, "migrate", "metallb", "-f", file+".none")
}

// TestMigrateSamples: every object of MetalLB's own samples is printed, but for the two with a VRF.
func TestMigrateSamples(t *testing.T) {
	const samples = "../internal/config/testdata/metallb-v0.16.2.yaml"
	text, err := os.ReadFile(samples)
	must(t, err)
	out, report := says(t, statusProblem, nil, "migrate", "metallb", "-f", samples)
	want := strings.Count(string(text), "apiVersion: metallb.io/") - 2
	got, no := admitted(t, out)
	if got != want || no != 0 || strings.Count(report, "sessions within a VRF") != 2 {
		t.Errorf("%d of %d objects, %s", got, want, report)
	}
}

// TestMigrateOpenStack reads the example of the cloud controller manager's documentation.
func TestMigrateOpenStack(t *testing.T) {
	cluster := server(t, map[string]string{
		"/api/v1/services": strings.Replace(strings.Replace(sampleService, "ADDRESS", "203.0.113.5", 1), `"name": "web"`,
			`"name": "web", "annotations": {"loadbalancer.openstack.org/class": "internetFacing"}`, 1),
	})
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
	out, _ := says(t, statusProblem, []string{
		want, "kind: FloatingIP\n", "a02eb6c3-fc69-46ae-a3fe-fb43c1563cbc", "1 of 1 Services keep theirs",
	},
		"migrate", "openstack", "--cloud-conf", "testdata/cloud.conf", cluster)
	if strings.Count(out, "kind: IPAddressPool\n") != 4 {
		t.Error(out)
	}
	if yes, no := admitted(t, out); yes != 2 || no != 3 { // three pools lack their addresses
		t.Errorf("%d objects are admitted, %d are not", yes, no)
	}
	conf := filepath.Join(t.TempDir(), "cloud.conf")
	must(t,
		os.WriteFile(conf, []byte("[LoadBalancer]\nmax-shared-lb=5\ninternal-lb\nnode-selector=\"a=b, c=d\"\n"), 0o600))
	says(t, statusProblem, []string{
		`openStack: {maxShared: 5, internal: true, nodeSelector: "a=b, c=d"}`, "scope: Internal",
	},
		"migrate", "openstack", "--cloud-conf", conf, cluster)
	for _, args := range [][]string{{}, {"--cloud-conf", "testdata/none"}, {"--cloud-conf", "migrate_test.go"}} {
		status, _, report := invoke(t, append([]string{"migrate", "openstack", cluster}, args...)...)
		if status != statusError || report == "" {
			t.Errorf("%v: %d %s", args, status, report)
		}
	}
}

// foreign reads an object of MetalLB as ours of the same kind.
func foreign(t *testing.T, kind, name, spec string) runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, v1beta1.AddToScheme(scheme))
	o, err := scheme.New(v1beta1.GroupVersion.WithKind(kind))
	must(t, err)
	if err := yaml.UnmarshalStrict([]byte("{apiVersion: metallb.io/v1beta1, kind: "+kind+", metadata: {name: "+name+
		", namespace: mlb, uid: u, annotations: {"+
		corev1.LastAppliedConfigAnnotation+": x}}, spec: {"+spec+"}}"), o); err != nil {
		t.Fatal(err)
	}
	return o
}

// served is a Service as MetalLB leaves it, with the class "" for none.
func served(namespace, name, class string, addresses ...string) *corev1.Service {
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Annotations: map[string]string{"metallb.io/ip-allocated-from-pool": "lan"},
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.1", ClusterIPs: []string{
			"10.0.0.1", "fd00::1",
		},
			Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if len(addresses) < 2 {
		o.Spec.ClusterIPs = o.Spec.ClusterIPs[:1]
	}
	if class != "" {
		o.Spec.LoadBalancerClass = &class
	}
	for _, a := range addresses {
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
	}
	return o
}

// fresh is the cluster of healthy without Holdfast, with these Services.
func fresh(services ...*corev1.Service) Snapshot {
	s := healthy()
	s.Objects.Pools, s.Objects.L2Advertisements, s.Objects.Services = nil, nil, services
	return s
}

// report is the steps of a move without differences that concern all, in a line each.
func reported(m Move) (out []string) {
	for _, s := range m.Report.Steps {
		if s.Name != "differences" && s.Name != "addresses" || s.Verdict != OK && s.Verdict != Note {
			out = append(out,
				strings.TrimSpace(fmt.Sprintf("%s %s %s %s", s.Name, s.Verdict, s.Text, strings.Join(s.Details, "; "))))
		}
	}
	return out
}

// rendered is an object without its status.
func rendered(t *testing.T, o any) string {
	t.Helper()
	text, err := yaml.Marshal(o)
	must(t, err)
	out, _, _ := strings.Cut(string(text), "status:")
	return strings.ReplaceAll(strings.TrimSpace(out), "\n", "|")
}

// TestMetalLBObjects: what is served is kept, the rest is named.
func TestMetalLBObjects(t *testing.T) {
	const router = "myASN: 64600, peerASN: 64512, peerAddress: 192.0.2.9"
	const served = "|  myASN: 64600|  peerASN: 64512|  peerAddress: 192.0.2.9"
	for _, tt := range []struct {
		kind, spec string
		// want is the spec, "" if there is no object; report is the step about it.
		want, report string
	}{
		{"IPAddressPool", "addresses: [192.0.2.0/28], autoAssign: false",
			"|  addresses:|  - 192.0.2.0/28|  autoAssign: false", ""},
		{"L2Advertisement", "interfaces: [eth0]", "|  interfaces:|  - eth0", ""},
		{"BGPAdvertisement", "localPref: 7", "|  localPref: 7", ""},
		{"Community", "communities: [{name: a, value: '1:2'}]", `|  communities:|  - name: a|    value: "1:2"`, ""},
		{"BFDProfile", "echoMode: true, transmitInterval: 50", "|  transmitInterval: 50",
			"BFDProfile one note without echoMode, which is not served: choose shorter intervals"},
		{"BGPPeer", router, served, ""},
		{"BGPPeer", "passwordSecret: {}, holdTime: 0s, " + router,
			"|  myASN: 64600|  passwordSecret: {}|  peerASN: 64512|  peerAddress: 192.0.2.9",
			"BGPPeer one note without holdTime 0s, with which a session would outlive a dead router: it is 90s"},
		{"BGPPeer", "passwordSecret: {name: p, namespace: mlb}, " + router,
			"|  myASN: 64600|  passwordSecret:|    name: p|  peerASN: 64512|  peerAddress: 192.0.2.9",
			"BGPPeer one problem its password is in Secret p of namespace mlb, and is read in namespace holdfast-system"},
		{"BGPPeer", "vrf: red, " + router, "",
			"BGPPeer one problem left out, because sessions within a VRF are not served: use a router that the node reaches " +
				"by its main routing table"},
	} {
		t.Run(tt.kind+" "+tt.spec, func(t *testing.T) {
			m, got := fresh().MetalLB([]runtime.Object{foreign(t, tt.kind, "one", tt.spec)}, nil), ""
			for _, o := range m.Objects {
				got += rendered(t, o)
			}
			if tt.want != "" {
				tt.want = "apiVersion: holdfast.dev/v1beta1|kind: " + tt.kind + "|metadata:|  name: one|spec:" + tt.want
			}
			if diff := cmp.Diff(tt.want, got) + cmp.Diff(tt.report, strings.Join(reported(m), "|")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// TestMetalLBServices: the report names what would change for Services.
func TestMetalLBServices(t *testing.T) {
	pool := foreign(t, "IPAddressPool", "lan", "addresses: [192.0.2.0/28, '2001:db8::/124']")
	shared := func(namespace, name string, port int32) *corev1.Service {
		o := served(namespace, name, "", "192.0.2.1")
		o.Annotations["metallb.io/allow-shared-ip"], o.Spec.Ports[0].Port = "k", port
		return o
	}
	elsewhere := served("default", "cloud", "cloud", "203.0.113.1")
	elsewhere.Annotations = nil
	leaving := served("default", "leaving", "", "203.0.113.9")
	leaving.DeletionTimestamp = &metav1.Time{Time: moment}
	installed := func(s Snapshot) Snapshot {
		s.Controller = &appsv1.Deployment{}
		return s
	}
	for _, tt := range []struct {
		name     string
		snapshot Snapshot
		before   []*corev1.Service
		// want are the steps; none about addresses if all stay.
		want []string
	}{
		{"none", fresh(), nil, nil},
		{"both families", fresh(served("default", "web", "", "2001:db8::5", "192.0.2.1")), nil, nil},
		{"an address of no pool", fresh(served("default", "web", "", "203.0.113.5")),
			nil, []string{"addresses problem 0 of 1 Services keep theirs " +
				"default/web had 203.0.113.5: ForeignAddress: its status has 203.0.113.5, which no pool ever had: another load " +
				"balancer wrote it. " +
				lb.ForeignAddress.Remedy()}},
		{"another load balancer, and a Service that is being deleted", fresh(elsewhere, leaving), nil, nil},
		{"a class", fresh(served("default", "web", "mlb", "192.0.2.1"), elsewhere), nil, []string{
			"class mlb note 1 Services have it and cannot change it: install Holdfast with --set " +
				"loadBalancerClass=mlb,defaultLoadBalancer=false"}},
		{"a class, and Holdfast is installed with another", installed(fresh(served("default", "web", "mlb", "192.0.2.1"))),
			nil, []string{
				"addresses problem 0 of 1 Services keep theirs default/web had 192.0.2.1: NotServed: its class is not Holdfast's",
				"class mlb note 1 Services have it and cannot change it: install Holdfast with --set " +
					"loadBalancerClass=mlb,defaultLoadBalancer=false"}},
		{"shared across namespaces", fresh(shared("a", "x", 80), shared("b", "y", 81)), nil, []string{
			"IPAddressPool lan note sharing.scope is Cluster, not Namespace, because Services of several namespaces share: " +
				"b/y has 192.0.2.1 as a does"}},
		{"shared within a namespace", fresh(shared("a", "x", 80), shared("a", "y", 81)), nil, nil},
		{"shared, and clashing", fresh(shared("a", "x", 80), shared("a", "y", 80)),
			nil, []string{"addresses problem 1 of 2 Services keep theirs " +
				"a/y had 192.0.2.1: Assigned: has 192.0.2.0 from pool \"lan\"; it cannot share 192.0.2.1, where Service a/x " +
				"holds port TCP/80"}},
		{"changed since",
			fresh(served("default", "web", "", "192.0.2.2")), []*corev1.Service{served("default", "web", "", "192.0.2.1"),
				served("default", "gone", "", "192.0.2.3")}, []string{"addresses problem 0 of 1 Services keep theirs " +
				"default/web had 192.0.2.1: Assigned: has 192.0.2.2 from pool \"lan\""}},
	} {
		before := tt.before
		if before == nil {
			before = tt.snapshot.Objects.Services
		}
		m := tt.snapshot.MetalLB([]runtime.Object{pool.DeepCopyObject()}, before)
		if diff := cmp.Diff(tt.want, reported(m)); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.name, diff)
		}
		across := strings.HasPrefix(tt.name, "shared across")
		if p := m.Objects[0].(*v1beta1.IPAddressPool); (p.Spec.Sharing != nil) != across {
			t.Errorf("%s: sharing %+v", tt.name, p.Spec.Sharing)
		}
	}
}
