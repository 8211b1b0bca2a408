package explain

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// foreign reads an object of MetalLB.
func foreign(t *testing.T, kind, name, spec string) Foreign {
	t.Helper()
	var f Foreign
	if err := yaml.Unmarshal([]byte("{kind: "+kind+", metadata: {name: "+name+", namespace: mlb, uid: u, labels: {a: b}, annotations: {c: d, "+
		corev1.LastAppliedConfigAnnotation+": x}}, spec: {"+spec+"}}"), &f); err != nil {
		t.Fatal(err)
	}
	return f
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

// TestMetalLBObjects: what is served is kept, the rest is named.
func TestMetalLBObjects(t *testing.T) {
	const router = "myASN: 64600, peerASN: 64512, peerAddress: 192.0.2.9, enableGracefulRestart: false"
	for _, tt := range []struct {
		kind, spec string
		// want is the spec, "" if there is no object; then steps have these words.
		want, words string
		verdict     Verdict
	}{
		{"IPAddressPool", "addresses: [192.0.2.0/28], autoAssign: false", `{"addresses":["192.0.2.0/28"],"autoAssign":false}`, "", ""},
		{"IPAddressPool", "addresses: [192.0.2.0/28], novel: 1", `{"addresses":["192.0.2.0/28"]}`, `unknown field "novel"`, Problem},
		{"L2Advertisement", "interfaces: [eth0]", `{"interfaces":["eth0"]}`, "", ""},
		{"BGPAdvertisement", "localPref: 7", `{"localPref":7}`, "", ""},
		{"Community", "communities: [{name: a, value: '1:2'}]", `{"communities":[{"name":"a","value":"1:2"}]}`, "", ""},
		{"BFDProfile", "echoMode: true, transmitInterval: 50", `{"transmitInterval":50}`, "without echoMode", Note},
		{"BGPPeer", router, `{"enableGracefulRestart":false,"myASN":64600,"peerASN":64512,"peerAddress":"192.0.2.9"}`, "", ""},
		{"BGPPeer", router + ", disableMP: true, passwordSecret: {}, holdTime: 0s, keepaliveTime: 0s",
			`{"enableGracefulRestart":false,"keepaliveTime":"0s","myASN":64600,"peerASN":64512,"peerAddress":"192.0.2.9"}`, "without holdTime 0s", Note},
		{"BGPPeer", router + ", passwordSecret: {name: p, namespace: mlb}, nodeSelectors: [{matchExpressions: [{key: a, operator: In, values: [b]}]}]",
			`{"enableGracefulRestart":false,"myASN":64600,"nodeSelectors":[{"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]}],` +
				`"passwordSecret":{"name":"p"},"peerASN":64512,"peerAddress":"192.0.2.9"}`,
			`kubectl create secret generic p -n holdfast-system --type=kubernetes.io/basic-auth --from-literal=password="$(kubectl get secret p -n mlb -o`, Note},
		{"BGPPeer", "myASN: 64600, peerASN: 64512, peerAddress: 192.0.2.9", `{"myASN":64600,"peerASN":64512,"peerAddress":"192.0.2.9"}`,
			"BGPPeers without enableGracefulRestart have it on", Note},
		{"BGPPeer", router + ", vrf: red", "", "sessions within a VRF are not served", Problem},
		{"ServiceL2Status", "", "", "", ""},
	} {
		t.Run(tt.kind+" "+tt.spec, func(t *testing.T) {
			objects, report := fresh().MetalLB([]Foreign{foreign(t, tt.kind, "one", tt.spec)}, nil)
			got := ""
			for _, o := range objects {
				body, err := yaml.Marshal(o)
				var read Foreign
				if err = cmpError(err, yaml.Unmarshal(body, &read)); err != nil {
					t.Fatal(err)
				}
				spec, _ := yaml.Marshal(read.Spec)
				spec, _ = yaml.YAMLToJSON(spec)
				got += string(spec)
				read.Spec, read.CreationTimestamp = nil, metav1.Time{}
				if want := (Foreign{TypeMeta: metav1.TypeMeta{APIVersion: "holdfast.dev/v1beta1", Kind: tt.kind}, ObjectMeta: metav1.ObjectMeta{
					Name: "one", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}}}); !cmp.Equal(read, want) {
					t.Errorf("%+v", read)
				}
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			found := tt.words == ""
			for _, s := range report.Steps {
				found = found || s.Verdict == tt.verdict && strings.Contains(fmt.Sprint(s.Text, s.Details), tt.words)
				if tt.words == "" && s.Name != "differences" {
					t.Errorf("%+v", s)
				}
			}
			if !found {
				t.Errorf("want %s %q, got %+v", tt.verdict, tt.words, report.Steps)
			}
		})
	}
}

func cmpError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
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
		// want are the steps, other than differences, in a line each.
		want []string
	}{
		{"none", fresh(), nil, nil},
		{"both families", fresh(served("default", "web", "", "2001:db8::5", "192.0.2.1")), nil, []string{"addresses ok 1 of 1 Services keep theirs []"}},
		{"an address of no pool", fresh(served("default", "web", "", "203.0.113.5")), nil, []string{"addresses problem 0 of 1 Services keep theirs " +
			"[default/web had 203.0.113.5: ForeignAddress: its status has 203.0.113.5, which no pool ever had: another load balancer wrote it; " +
			"turn that one off for this Service, then set holdfast.dev/renew]"}},
		{"another load balancer, and a Service that is being deleted", fresh(elsewhere, leaving), nil, nil},
		{"a class", fresh(served("default", "web", "mlb", "192.0.2.1"), elsewhere), nil, []string{"addresses ok 1 of 1 Services keep theirs []",
			`classes note MetalLB serves Services, by their annotation 1 of class "mlb": a Service cannot change its class: install the chart of Holdfast with ` +
				`--set loadBalancerClass=mlb,defaultLoadBalancer=false []`}},
		{"a class, and Holdfast is installed with another", installed(fresh(served("default", "web", "mlb", "192.0.2.1"))), nil, []string{
			"addresses problem 0 of 1 Services keep theirs [default/web had 192.0.2.1: its class is not Holdfast's]",
			`classes problem MetalLB serves Services, by their annotation 1 of class "mlb": a Service cannot change its class: install the chart of Holdfast with ` +
				`--set loadBalancerClass=mlb,defaultLoadBalancer=false []`}},
		{"shared across namespaces", fresh(shared("a", "x", 80), shared("b", "y", 81)), nil, []string{"addresses ok 2 of 2 Services keep theirs []",
			"IPAddressPool lan note sharing.scope is Cluster, because Services of several namespaces share 192.0.2.1; the default is Namespace [a/x b/y]"}},
		{"shared within a namespace", fresh(shared("a", "x", 80), shared("a", "y", 81)), nil, []string{"addresses ok 2 of 2 Services keep theirs []"}},
		{"shared, and clashing", fresh(shared("a", "x", 80), shared("a", "y", 80)), nil, []string{"addresses problem 1 of 2 Services keep theirs " +
			"[a/y had 192.0.2.1: Assigned: has 192.0.2.0 from pool \"lan\"]"}},
		{"changed since", fresh(served("default", "web", "", "192.0.2.2")), []*corev1.Service{served("default", "web", "", "192.0.2.1"),
			served("default", "gone", "", "192.0.2.3")}, []string{"addresses problem 0 of 1 Services keep theirs " +
			"[default/web had 192.0.2.1: Assigned: has 192.0.2.2 from pool \"lan\"]"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.before
			if before == nil {
				before = tt.snapshot.Objects.Services
			}
			objects, report := tt.snapshot.MetalLB([]Foreign{pool}, before)
			var got []string
			for _, s := range report.Steps {
				if s.Name != "differences" {
					got = append(got, fmt.Sprintf("%s %s %s %v", s.Name, s.Verdict, s.Text, s.Details))
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			across := strings.HasPrefix(tt.name, "shared across")
			if p := objects[0].(*v1beta1.IPAddressPool); (p.Spec.Sharing != nil) != across {
				t.Errorf("sharing %+v", p.Spec.Sharing)
			}
		})
	}
}

// TestMetalLBTwice: of two objects with a name the first is kept; source ranges and unread Services are named.
func TestMetalLBTwice(t *testing.T) {
	web := served("default", "web", "")
	web.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
	s := fresh(web)
	s.Unread[Services] = "forbidden"
	objects, report := s.MetalLB([]Foreign{foreign(t, "Community", "c", ""), foreign(t, "Community", "c", ""), foreign(t, "BFDProfile", "c", "")}, nil)
	if text := fmt.Sprintf("%+v", report); len(objects) != 2 || !strings.Contains(text, "there are two of this name") ||
		!strings.Contains(text, "holdfast.dev/internal-traffic: Allow: default/web") || !strings.Contains(text, "Services could not be read: forbidden") {
		t.Errorf("%d objects, %s", len(objects), text)
	}
}
