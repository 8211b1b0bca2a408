package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func served() Options { return Options{LoadBalancerClass: "holdfast.dev/lb", Default: true} }

func serviceObject(name string, changes ...func(*corev1.Service)) *corev1.Service {
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1", "fd00:96::1"},
			Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}},
		},
	}
	for _, change := range changes {
		change(o)
	}
	return o
}

func class(name string) func(*corev1.Service) {
	return func(o *corev1.Service) { o.Spec.LoadBalancerClass = &name }
}

func having(ips ...string) func(*corev1.Service) {
	return func(o *corev1.Service) {
		for _, ip := range ips {
			o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

func leaving(o *corev1.Service) { o.DeletionTimestamp = new(metav1.Unix(9, 0)) }

func annotated(key, value string) func(*corev1.Service) {
	return func(o *corev1.Service) { o.Annotations[key] = value }
}

func TestWhichServicesAreOurs(t *testing.T) {
	services := []*corev1.Service{
		serviceObject("plain", having("192.0.2.1")),
		serviceObject("ours", class("holdfast.dev/lb"), having("192.0.2.2")),
		serviceObject("theirs", class("example.com/lb"), having("192.0.2.3", "garbage")),
		serviceObject("leaving", leaving, having("192.0.2.4", "192.0.2.3")),
		serviceObject("inner", having("192.0.2.5"), func(o *corev1.Service) { o.Spec.Type = corev1.ServiceTypeClusterIP }),
	}
	for _, tt := range []struct {
		name     string
		opt      Options
		want     []string
		reserved map[string]string
	}{
		{
			"class and default",
			served(), []string{"ours", "plain"},
			map[string]string{"192.0.2.3": "theirs", "192.0.2.4": "leaving", "192.0.2.5": "inner"},
		},
		{"class only", Options{LoadBalancerClass: "holdfast.dev/lb"}, []string{"ours"},
			map[string]string{"192.0.2.1": "plain", "192.0.2.3": "leaving", "192.0.2.4": "leaving", "192.0.2.5": "inner"}},
	} {
		s, problems := Compile(Objects{Services: services}, tt.opt)
		var got []string
		for _, svc := range s.Services {
			got = append(got, svc.Key.Name)
		}
		same(t, tt.name, tt.want, got)
		reserved := map[string]string{}
		for addr, key := range s.Reserved {
			reserved[addr.String()] = key.Name
		}
		for _, l := range s.Leaving {
			for _, addr := range l.Addresses {
				if reserved[addr.String()] == "" {
					reserved[addr.String()] = l.Key.Name
				}
			}
		}
		same(t, tt.name+": reserved", tt.reserved, reserved)
		if problems != nil {
			t.Errorf("%s: problems: %v", tt.name, problemTexts(problems))
		}
	}
}

func TestService(t *testing.T) {
	o := serviceObject("web", having("192.0.2.1", "", "host.example", "::ffff:192.0.2.9", "192.0.2.1", "2001:db8::1"))
	o.UID, o.Labels, o.CreationTimestamp = "u", map[string]string{"app": "web"}, metav1.Unix(7, 0)
	o.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
	o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	o.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	o.Spec.Ports = []corev1.ServicePort{{Port: 80}, {Port: 53, Protocol: corev1.ProtocolUDP}}
	slice := func(service, node string, c discoveryv1.EndpointConditions) *discoveryv1.EndpointSlice {
		e := sliceObject(service, discoveryv1.Endpoint{Conditions: c, NodeName: &node})
		if node == "" {
			e.Endpoints[0].NodeName = nil
		}
		return e
	}
	yes, no := new(true), new(false)
	unlabelled := slice("web", "unlabelled", discoveryv1.EndpointConditions{})
	unlabelled.Labels = nil
	s, problems := Compile(Objects{
		Services: []*corev1.Service{o, serviceObject("idle", func(o *corev1.Service) {
			o.Spec.ClusterIPs = nil
			o.Spec.ClusterIP = "None"
		}),
			serviceObject("far", func(o *corev1.Service) { o.Spec.ClusterIPs = []string{"fd00:96::2"} })},
		EndpointSlices: numbered(
			slice("web", "ready", discoveryv1.EndpointConditions{Ready: yes, Serving: yes}),
			slice("web", "unknown", discoveryv1.EndpointConditions{}),
			slice("web", "draining", discoveryv1.EndpointConditions{Ready: no, Serving: yes, Terminating: yes}),
			slice("web", "down", discoveryv1.EndpointConditions{Ready: no, Serving: no}),
			slice("web", "gone", discoveryv1.EndpointConditions{Ready: no, Terminating: yes}),
			slice("web", "starting", discoveryv1.EndpointConditions{Ready: no, Serving: yes, Terminating: no}),
			unlabelled,
			of(discoveryv1.AddressTypeIPv6, slice("far", "", discoveryv1.EndpointConditions{Ready: yes}),
				discoveryv1.EndpointPort{Port: new(int32(8080))}),
			slice("idle", "n", discoveryv1.EndpointConditions{Ready: no}),
			slice("other/web", "foreign", discoveryv1.EndpointConditions{}),
		),
	}, served())
	want := []*lb.Service{{
		Key: lb.Key{Namespace: "default", Name: "far"}, Families: []lb.Family{lb.IPv6}, FamilyPolicy: lb.SingleStack,
		Ports:      []lb.Port{{Protocol: "TCP", Port: 80, NodePort: 30080}},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("fd00:96::2")},
		Backends:   lb.Backend{Families: lb.FamilySetOf(lb.IPv6), Anywhere: true},
	}, {
		Key: lb.Key{Namespace: "default", Name: "idle"}, FamilyPolicy: lb.SingleStack,
		Ports: []lb.Port{{Protocol: "TCP", Port: 80, NodePort: 30080}},
	}, {
		Key: lb.Key{Namespace: "default", Name: "web"}, UID: "u", Labels: o.Labels, Created: time.Unix(7, 0),
		Families: []lb.Family{lb.IPv4, lb.IPv6}, FamilyPolicy: lb.PreferDualStack,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")},
		Ports:      []lb.Port{{Protocol: "TCP", Port: 80}, {Protocol: "UDP", Port: 53}}, Local: true, InternalLocal: true,
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		Backends: lb.Backend{
			Families: lb.FamilySetOf(lb.IPv4), Nodes: lb.Names{"draining", "gone", "ready", "unknown"},
			Terminating: lb.Names{"draining", "gone"},
			Ports:       []lb.Port{{Protocol: "TCP", Port: 80}},
		},
	}}
	same(t, "services", want, s.Services, addrs())
	if problems != nil {
		t.Errorf("problems: %v", problemTexts(problems))
	}
}

func TestNode(t *testing.T) {
	n := nodeObject("n1", "a", "192.0.2.1", "n1.example", "2001:db8::1")
	external := corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.9"}
	n.Status.Addresses = append([]corev1.NodeAddress{external}, n.Status.Addresses...)
	n.Labels[corev1.LabelNodeExcludeBalancers] = "false"
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse},
		{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue}}
	want := lb.Node{
		Name: "n1", Labels: n.Labels, Excluded: true, NetworkUnavailable: true,
		Addresses: []netip.Addr{
			netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("203.0.113.9"),
		},
	}
	for _, ignore := range []bool{false, true} {
		want.Excluded = !ignore
		s, _ := Compile(Objects{Nodes: []*corev1.Node{n}}, Options{IgnoreExcludeLabel: ignore})
		if diff := cmp.Diff(map[string]lb.Node{"n1": want}, s.Nodes, addrs()); diff != "" {
			t.Errorf("ignore %v: -want +got\n%s", ignore, diff)
		}
	}
}

// TestNotServed: with FloatingIPs, the State has every existing Service that is not ours.
func TestNotServed(t *testing.T) {
	uid := func(o *corev1.Service) { o.UID = types.UID("uid-" + o.Name) }
	clusterIP := func(o *corev1.Service) { o.Spec.Type = corev1.ServiceTypeClusterIP }
	objects := Objects{Services: []*corev1.Service{
		serviceObject("ours", uid), serviceObject("theirs", uid, class("example.com/lb")),
		serviceObject("internal", uid, clusterIP), serviceObject("leaving", uid, leaving),
		serviceObject("going", uid, clusterIP, leaving),
	}}
	if s, _ := Compile(objects, served()); s.NotServed != nil {
		t.Errorf("read without FloatingIPs: %v", s.NotServed)
	}
	objects.FloatingIPs = []*v1beta1.FloatingIP{{}}
	s, _ := Compile(objects, served())
	want := map[lb.Key]string{
		{Namespace: "default", Name: "theirs"}: "uid-theirs", {Namespace: "default", Name: "internal"}: "uid-internal",
	}
	same(t, "not served", want, s.NotServed)
}

// TestRecord: the record is read as it was written, only on the object that it belongs to, and only as a whole.
func TestRecord(t *testing.T) {
	held := origins("192.0.2.1=lan#3x", "2001:db8::1=lan6#3x", "203.0.113.9=old#released", "203.0.113.8=fip")
	const text = "uid=u1 192.0.2.1=lan#3x 2001:db8::1=lan6#3x 203.0.113.9=old#released 203.0.113.8=fip"
	c, stands := Record("u1", held)
	if !stands || c.Message != text || c.Type != v1beta1.ConditionAddressRecord {
		t.Errorf("wrote %v, %v", c, stands)
	}
	if _, stands := Record("u1", nil); stands {
		t.Error("there is a record of nothing")
	}
	var many lb.Origins
	for a := netip.MustParseAddr("192.0.2.1"); len(many) < 2*maxOrigins; a = a.Next() {
		many = append(many, lb.Origin{Address: a, Pool: strings.Repeat("p", 253), Terms: "3x"})
	}
	for _, tt := range []struct {
		name, uid, text string
		want            lb.Origins
	}{
		{"its own", "u1", text, held},
		{"of another object", "u2", text, nil},
		{"of an object with a longer UID", "u", text, nil},
		{"none", "u1", "", nil},
		{"empty", "u1", "uid=u1", nil},
		{"empty items", "u1", "uid=u1 ", nil},
		{"no pool", "u1", "uid=u1 192.0.2.1", nil},
		{"another spelling", "u1", "uid=u1 2001:db8:0::1=lan6", nil},
		{"IPv4 in IPv6", "u1", "uid=u1 ::ffff:192.0.2.1=lan", nil},
		{"empty terms", "u1", "uid=u1 192.0.2.1=lan#", nil},
		{"a part that cannot be read", "u1", "uid=u1 192.0.2.1=lan#3x eaten", nil},
		{"too many", "u1", recordTextOf("u1", many), nil},
		{"as many as fit", "u1", recordText("u1", many), many[:maxOrigins]},
	} {
		got := readRecord(types.UID(tt.uid), []metav1.Condition{{Type: v1beta1.ConditionAddressRecord, Message: tt.text}})
		same(t, tt.name, tt.want, got, cmpopts.EquateComparable(netip.Addr{}))
	}
}

// recordTextOf is recordText without a bound.
func recordTextOf(uid types.UID, list lb.Origins) string {
	text := recordText(uid, list[:1])
	for _, o := range list[1:] {
		_, item, _ := strings.Cut(recordText(uid, lb.Origins{o}), " ")
		text += " " + item
	}
	return text
}

// FuzzRecord: whatever the condition contains, a record is read only if Record would write the same text.
func FuzzRecord(f *testing.F) {
	f.Add("u", "uid=u 192.0.2.1=lan#3x 2001:db8::1=lan6#released")
	f.Add("", "uid= 192.0.2.1==#")
	f.Fuzz(func(t *testing.T, uid, text string) {
		conditions := []metav1.Condition{{Type: v1beta1.ConditionAddressRecord, Message: text}}
		got := readRecord(types.UID(uid), conditions)
		if got == nil {
			return
		}
		c, stands := Record(types.UID(uid), got)
		if !stands || c.Message != text || len(got) > maxOrigins {
			t.Errorf("read %v of %q, which is written %q", got, text, c.Message)
		}
	})
}

func origins(items ...string) lb.Origins {
	var out lb.Origins
	for _, item := range items {
		address, from, _ := strings.Cut(item, "=")
		pool, terms, _ := strings.Cut(from, "#")
		out = append(out, lb.Origin{Address: netip.MustParseAddr(address), Pool: pool, Terms: terms})
	}
	return out
}

// recorded gives a Service the record that the controller writes.
func recorded(items ...string) func(*corev1.Service) {
	return func(o *corev1.Service) {
		c, _ := Record(o.UID, origins(items...))
		o.Status.Conditions = append(o.Status.Conditions, c)
	}
}

// TestRecall: an annotation requests one former address of each family, and other content has no effect.
func TestRecall(t *testing.T) {
	many := "for=ns/web"
	for i := range 200 {
		many += fmt.Sprintf(",198.51.100.%d=lan,198.51.100.%d#3x", i, i)
	}
	for annotation, want := range map[string]lb.Origins{
		"":                               nil,
		"192.0.2.1=lan,2001:db8::1=lan6": origins("192.0.2.1=lan", "2001:db8::1=lan6"),
		"192.0.2.1":                      nil,
		"garbage=lan,,=,192.0.2.1=lan":   origins("192.0.2.1=lan"),
		"for=ns/web,192.0.2.1=lan":       origins("192.0.2.1=lan"),
		"for=ns/original,192.0.2.1=lan":  nil,
		"for=other/web,192.0.2.1=lan":    nil,
		"192.0.2.1=lan,for=ns/original":  nil,
		"192.0.2.1#3x,2001:db8::1#3x":    nil,
		"192.0.2.1=a,192.0.2.2=b,192.0.2.3#3x,2001:db8::1=a,2001:db8::2=a": origins("192.0.2.1=a", "2001:db8::1=a"),
		many[:maxAssigned]: origins("198.51.100.0=lan"),
		many:               nil,
	} {
		o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "restored",
			Annotations: map[string]string{"holdfast.dev/assigned": annotation}}}
		if diff := cmp.Diff(want, recall(o), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%q: -want +got\n%s", annotation, diff)
		}
	}
}

// TestAnnouncedBy: the record of the announcing nodes is read leniently, and from the status only: an annotation that a
// user writes makes no speaker skip a probe or relay to a node.
func TestAnnouncedBy(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, tt := range []struct {
		name, record, annotation string
		want                     lb.ByNode
	}{
		{
			"one of each family",
			"192.0.2.1=w1.example,2001:db8::1=w2", "",
			lb.ByNode{{Address: a, Node: "w1.example"}, {Address: b, Node: "w2"}},
		},
		{"garbage", "eaten,=,192.0.2.1=w1,300.0.0.1=w2,,w3=192.0.2.9,192.0.2.1=w2", "", lb.ByNode{{Address: a, Node: "w1"}}},
		{
			"of another load balancer: a node for all addresses",
			"w1.example", "", lb.ByNode{{Address: a, Node: "w1.example"}, {Address: b, Node: "w1.example"}},
		},
		{"none", "", "", nil},
		{"forged", "192.0.2.1=w1", "192.0.2.1=w3,2001:db8::1=w3", lb.ByNode{{Address: a, Node: "w1"}}},
		{"forged on a new Service", "", "192.0.2.1=w3", nil},
	} {
		o := serviceObject("s")
		o.Annotations = map[string]string{"holdfast.dev/announced-by": tt.annotation}
		o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
			{IP: a.String()},
			{Hostname: "lb.example.com"},
			{IP: b.String()},
		}
		o.Status.Conditions = []metav1.Condition{{
			Type: v1beta1.ConditionAnnouncedL2, Status: metav1.ConditionTrue, Message: "192.0.2.1 by node w4",
		}}
		if tt.record != "" {
			o.Status.Conditions = append(o.Status.Conditions,
				metav1.Condition{Type: v1beta1.ConditionAnnouncers, Status: metav1.ConditionTrue, Message: tt.record})
		}
		s, _ := Compile(Objects{Services: []*corev1.Service{o}}, served())
		same(t, tt.name, tt.want, s.Services[0].AnnouncedBy, cmpopts.EquateComparable(netip.Addr{}))
	}
}

// A copied manifest has the annotations that Holdfast wrote to the original. Neither their address nor their load
// balancer id is requested; an id that a user wrote is.
func TestCopiedManifest(t *testing.T) {
	original := serviceObject("original", func(o *corev1.Service) { o.UID = "u-original" })
	for _, tt := range []struct{ name, record, id, want string }{
		{"copied", "for=default/original,192.0.2.1=lan", "u-original", ""},
		{"copied, and asks for another", "for=default/original,192.0.2.1=lan", "u-third", "u-third"},
		{"a copy of a sharing Service", "for=default/sharer,192.0.2.1=lan", "u-original", "u-original"},
		{"not copied", "", "u-original", "u-original"},
		{"its own", "for=default/copy,192.0.2.1=lan", "u-copy", "u-copy"},
	} {
		o := serviceObject("copy", func(o *corev1.Service) {
			o.UID, o.ResourceVersion = "u-copy", "7"
			o.Annotations = map[string]string{
				v1beta1.AnnotationAssigned: tt.record, openstack.ID: tt.id, AnnotationSharingKey: "",
			}
		})
		third := serviceObject("third", func(o *corev1.Service) { o.UID = "u-third" })
		s, _ := Compile(Objects{Services: []*corev1.Service{o, original, third}}, served())
		got := s.Services[0]
		if got.LoadBalancerID != tt.want || got.MaxShared > 0 != (tt.want != "") {
			t.Errorf("%s: asks to share %q with %d", tt.name, got.LoadBalancerID, got.MaxShared)
		}
	}
}
