package config

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

func ptr[T any](v T) *T { return &v }

func served() Options { return Options{LoadBalancerClass: "holdfast.dev/lb", Default: true} }

func serviceObject(name string, changes ...func(*corev1.Service)) *corev1.Service {
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1", "fd00:96::1"}},
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

func leaving(o *corev1.Service) { o.DeletionTimestamp = ptr(metav1.Unix(9, 0)) }

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
		{"class and default", served(), []string{"ours", "plain"}, map[string]string{"192.0.2.3": "theirs", "192.0.2.4": "leaving", "192.0.2.5": "inner"}},
		{"class only", Options{LoadBalancerClass: "holdfast.dev/lb"}, []string{"ours"},
			map[string]string{"192.0.2.1": "plain", "192.0.2.3": "leaving", "192.0.2.4": "leaving", "192.0.2.5": "inner"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, problems := Compile(Objects{Services: services}, tt.opt)
			var got []string
			for _, svc := range s.Services {
				got = append(got, svc.Key.Name)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
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
			if diff := cmp.Diff(tt.reserved, reserved); diff != "" {
				t.Errorf("reserved: -want +got\n%s", diff)
			}
			if problems != nil {
				t.Errorf("problems: %v", problemTexts(problems))
			}
		})
	}
}

func TestService(t *testing.T) {
	o := serviceObject("web", having("192.0.2.1", "", "host.example", "::ffff:192.0.2.9", "192.0.2.1", "2001:db8::1"))
	o.UID, o.Labels, o.CreationTimestamp = "u", map[string]string{"app": "web"}, metav1.Unix(7, 0)
	o.Spec.IPFamilyPolicy = ptr(corev1.IPFamilyPolicyPreferDualStack)
	o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	o.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal)
	o.Spec.Ports = []corev1.ServicePort{{Port: 80}, {Port: 53, Protocol: corev1.ProtocolUDP}}
	slice := func(service, node string, c discoveryv1.EndpointConditions) *discoveryv1.EndpointSlice {
		e := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}
		if service != "" {
			e.Labels = map[string]string{discoveryv1.LabelServiceName: service}
		}
		e.Endpoints = []discoveryv1.Endpoint{{Conditions: c}}
		if node != "" {
			e.Endpoints[0].NodeName = &node
		}
		return e
	}
	yes, no := ptr(true), ptr(false)
	foreign := slice("web", "foreign", discoveryv1.EndpointConditions{})
	foreign.Namespace = "other"
	s, problems := Compile(Objects{
		Services: []*corev1.Service{o, serviceObject("idle", func(o *corev1.Service) { o.Spec.ClusterIPs, o.Spec.ClusterIP = nil, "None" }),
			serviceObject("far", func(o *corev1.Service) { o.Spec.ClusterIPs = []string{"fd00:96::2"} })},
		EndpointSlices: []*discoveryv1.EndpointSlice{
			slice("web", "ready", discoveryv1.EndpointConditions{Ready: yes, Serving: yes}),
			slice("web", "unknown", discoveryv1.EndpointConditions{}),
			slice("web", "draining", discoveryv1.EndpointConditions{Ready: no, Serving: yes, Terminating: yes}),
			slice("web", "down", discoveryv1.EndpointConditions{Ready: no, Serving: no}),
			slice("web", "gone", discoveryv1.EndpointConditions{Ready: no}),
			slice("", "unlabelled", discoveryv1.EndpointConditions{}),
			slice("far", "", discoveryv1.EndpointConditions{Ready: yes}),
			slice("idle", "n", discoveryv1.EndpointConditions{Ready: no}),
			foreign,
		},
	}, served())
	want := []*lb.Service{{
		Key: lb.Key{Namespace: "default", Name: "far"}, Families: []lb.Family{lb.IPv6}, FamilyPolicy: lb.SingleStack, Serving: true, ServingAnywhere: true,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("fd00:96::2")},
	}, {
		Key: lb.Key{Namespace: "default", Name: "idle"}, FamilyPolicy: lb.SingleStack,
	}, {
		Key: lb.Key{Namespace: "default", Name: "web"}, UID: "u", Labels: o.Labels, Created: time.Unix(7, 0),
		Families: []lb.Family{lb.IPv4, lb.IPv6}, FamilyPolicy: lb.PreferDualStack,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")},
		Ports:      []lb.Port{{Protocol: "TCP", Port: 80}, {Protocol: "UDP", Port: 53}}, Local: true, InternalLocal: true,
		Addresses:    []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		ServingNodes: map[string]bool{"ready": true, "unknown": true, "draining": true}, Serving: true,
	}}
	if diff := cmp.Diff(want, s.Services, addrs()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
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
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("203.0.113.9")},
	}
	for _, ignore := range []bool{false, true} {
		want.Excluded = !ignore
		s, _ := Compile(Objects{Nodes: []*corev1.Node{n}}, Options{IgnoreExcludeLabel: ignore})
		if diff := cmp.Diff(map[string]lb.Node{"n1": want}, s.Nodes, addrs()); diff != "" {
			t.Errorf("ignore %v: -want +got\n%s", ignore, diff)
		}
	}
}

// TestNotServed: with FloatingIPs, the State knows every existing Service that is not ours to serve.
func TestNotServed(t *testing.T) {
	uid := func(o *corev1.Service) { o.UID = types.UID("uid-" + o.Name) }
	clusterIP := func(o *corev1.Service) { o.Spec.Type = corev1.ServiceTypeClusterIP }
	objects := Objects{Services: []*corev1.Service{
		serviceObject("ours", uid), serviceObject("theirs", uid, class("example.com/lb")), serviceObject("internal", uid, clusterIP),
		serviceObject("leaving", uid, leaving), serviceObject("going", uid, clusterIP, leaving),
	}}
	if s, _ := Compile(objects, served()); s.NotServed != nil {
		t.Errorf("nobody reads %v", s.NotServed)
	}
	objects.FloatingIPs = []*v1beta1.FloatingIP{{}}
	s, _ := Compile(objects, served())
	want := map[lb.Key]string{{Namespace: "default", Name: "theirs"}: "uid-theirs", {Namespace: "default", Name: "internal"}: "uid-internal"}
	if diff := cmp.Diff(want, s.NotServed); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
