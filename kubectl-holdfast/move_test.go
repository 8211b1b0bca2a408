package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// foreign reads an object of MetalLB as ours of the same kind.
func foreign(t *testing.T, kind, name, spec string) runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, v1beta1.AddToScheme(scheme))
	o, err := scheme.New(v1beta1.GroupVersion.WithKind(kind))
	must(t, err)
	if err := yaml.UnmarshalStrict([]byte("{apiVersion: metallb.io/v1beta1, kind: "+kind+", metadata: {name: "+name+", namespace: mlb, uid: u, annotations: {"+
		corev1.LastAppliedConfigAnnotation+": x}}, spec: {"+spec+"}}"), o); err != nil {
		t.Fatal(err)
	}
	return o
}

// served is a Service as MetalLB leaves it, with the class "" for none.
func served(namespace, name, class string, addresses ...string) *corev1.Service {
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{"metallb.io/ip-allocated-from-pool": "lan"}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1", "fd00::1"},
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
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", s.Name, s.Verdict, s.Text, strings.Join(s.Details, "; "))))
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
		{"IPAddressPool", "addresses: [192.0.2.0/28], autoAssign: false", "|  addresses:|  - 192.0.2.0/28|  autoAssign: false", ""},
		{"L2Advertisement", "interfaces: [eth0]", "|  interfaces:|  - eth0", ""},
		{"BGPAdvertisement", "localPref: 7", "|  localPref: 7", ""},
		{"Community", "communities: [{name: a, value: '1:2'}]", `|  communities:|  - name: a|    value: "1:2"`, ""},
		{"BFDProfile", "echoMode: true, transmitInterval: 50", "|  transmitInterval: 50",
			"BFDProfile one note without echoMode, which is not served: choose shorter intervals"},
		{"BGPPeer", router, served, ""},
		{"BGPPeer", "passwordSecret: {}, holdTime: 0s, " + router, "|  myASN: 64600|  passwordSecret: {}|  peerASN: 64512|  peerAddress: 192.0.2.9",
			"BGPPeer one note without holdTime 0s, with which a session would outlive a dead router: it is 90s"},
		{"BGPPeer", "passwordSecret: {name: p, namespace: mlb}, " + router,
			"|  myASN: 64600|  passwordSecret:|    name: p|  peerASN: 64512|  peerAddress: 192.0.2.9",
			`BGPPeer one note copy the password: kubectl create secret generic p -n holdfast-system --type=kubernetes.io/basic-auth --from-literal=password=` +
				`"$(kubectl get secret p -n mlb -o go-template='{{.data.password | base64decode}}')"`},
		{"BGPPeer", "vrf: red, " + router, "",
			"BGPPeer one problem left out, because sessions within a VRF are not served: use a router that the node reaches by its main routing table"},
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
		{"an address of no pool", fresh(served("default", "web", "", "203.0.113.5")), nil, []string{"addresses problem 0 of 1 Services keep theirs " +
			"default/web had 203.0.113.5: ForeignAddress: its status has 203.0.113.5, which no pool ever had: another load balancer wrote it; " +
			"turn that one off for this Service, then set holdfast.dev/renew"}},
		{"another load balancer, and a Service that is being deleted", fresh(elsewhere, leaving), nil, nil},
		{"a class", fresh(served("default", "web", "mlb", "192.0.2.1"), elsewhere), nil, []string{
			"class mlb note 1 Services have it and cannot change it: install Holdfast with --set loadBalancerClass=mlb,defaultLoadBalancer=false"}},
		{"a class, and Holdfast is installed with another", installed(fresh(served("default", "web", "mlb", "192.0.2.1"))), nil, []string{
			"addresses problem 0 of 1 Services keep theirs default/web had 192.0.2.1: NotServed: its class is not Holdfast's",
			"class mlb note 1 Services have it and cannot change it: install Holdfast with --set loadBalancerClass=mlb,defaultLoadBalancer=false"}},
		{"shared across namespaces", fresh(shared("a", "x", 80), shared("b", "y", 81)), nil, []string{
			"IPAddressPool lan note sharing.scope is Cluster, not Namespace, because Services of several namespaces share: b/y has 192.0.2.1 as a does"}},
		{"shared within a namespace", fresh(shared("a", "x", 80), shared("a", "y", 81)), nil, nil},
		{"shared, and clashing", fresh(shared("a", "x", 80), shared("a", "y", 80)), nil, []string{"addresses problem 1 of 2 Services keep theirs " +
			"a/y had 192.0.2.1: Assigned: has 192.0.2.0 from pool \"lan\""}},
		{"changed since", fresh(served("default", "web", "", "192.0.2.2")), []*corev1.Service{served("default", "web", "", "192.0.2.1"),
			served("default", "gone", "", "192.0.2.3")}, []string{"addresses problem 0 of 1 Services keep theirs " +
			"default/web had 192.0.2.1: Assigned: has 192.0.2.2 from pool \"lan\""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.before
			if before == nil {
				before = tt.snapshot.Objects.Services
			}
			m := tt.snapshot.MetalLB([]runtime.Object{pool.DeepCopyObject()}, before)
			if diff := cmp.Diff(tt.want, reported(m)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			across := strings.HasPrefix(tt.name, "shared across")
			if p := m.Objects[0].(*v1beta1.IPAddressPool); (p.Spec.Sharing != nil) != across {
				t.Errorf("sharing %+v", p.Spec.Sharing)
			}
		})
	}
}
