package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLostEndpoints(t *testing.T) {
	slice := func(service string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			Endpoints:  endpoints,
		}
	}
	endpoint := func(node string, ready bool, addresses ...string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{NodeName: &node, Addresses: addresses, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
	}
	other := serviceObject("other")
	other.Spec.Type = corev1.ServiceTypeClusterIP
	got := Options{Default: true}.LostEndpoints(
		[]*corev1.Service{serviceObject("a"), serviceObject("b"), other},
		[]*discoveryv1.EndpointSlice{
			slice("a", endpoint("dead", false, "10.0.0.1"), endpoint("dead", true, "10.0.0.2"), endpoint("live", false, "10.0.0.3"),
				endpoint("dead", false, "name", "")),
			slice("a", endpoint("dead", false, "2001:db8::1"), discoveryv1.Endpoint{Addresses: []string{"10.0.0.4"}}),
			slice("b", endpoint("dead", false, "10.0.0.2", "10.0.0.5")),
			slice("other", endpoint("dead", false, "10.0.0.6")), slice("nobody", endpoint("dead", false, "10.0.0.7")),
			// These serve again, on a live node and on an unknown one.
			slice("a", endpoint("dead", false, "10.0.0.8", "10.0.0.9")),
			slice("other", endpoint("live", true, "10.0.0.8")), slice("nobody", discoveryv1.Endpoint{Addresses: []string{"10.0.0.9"}}),
		}, map[string]bool{"dead": true})
	if want := "map[10.0.0.1:true 10.0.0.5:true 2001:db8::1:true]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// TestStarts: connections go where kube-proxy would lead them.
func TestStarts(t *testing.T) {
	yes, no := true, false
	web, other := "web", "other"
	endpoint := func(address, node string, c discoveryv1.EndpointConditions) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node, Conditions: c}
	}
	slice := func(service string, family discoveryv1.AddressType, port int32, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		udp := corev1.ProtocolUDP
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: family, Endpoints: endpoints,
			Ports: []discoveryv1.EndpointPort{{Name: &other, Port: ptr(int32(9))}, {Name: &web, Port: ptr(port + 1), Protocol: &udp}, {Name: &web, Port: &port}},
		}
	}
	ready := discoveryv1.EndpointConditions{Ready: &yes}
	ending := discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
	all := []*discoveryv1.EndpointSlice{
		slice("s", discoveryv1.AddressTypeIPv4, 8080, endpoint("10.0.0.2", "w2", ready), endpoint("10.0.0.1", "w1", ready), endpoint("10.0.0.3", "w3", ending),
			endpoint("bad", "w1", ready)),
		slice("s", discoveryv1.AddressTypeIPv4, 8081, endpoint("10.0.0.9", "w2", discoveryv1.EndpointConditions{Ready: &no})),
		slice("s", discoveryv1.AddressTypeIPv6, 8080, endpoint("fd00::3", "w3", ending)),
		slice("t", discoveryv1.AddressTypeIPv4, 8080, endpoint("10.0.0.7", "w1", ready)),
	}
	for _, tt := range []struct {
		name, node string
		change     func(*corev1.Service)
		want       string
	}{
		{"on all nodes", "w1", func(*corev1.Service) {}, "192.0.2.1 TCP/80 at [10.0.0.1:8080 10.0.0.2:8080] true; 2001:db8::1 TCP/80 at [[fd00::3]:8080] true"},
		{"on this node", "w2", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal },
			"192.0.2.1 TCP/80 at [10.0.0.2:8080] false"},
		{"affinity", "w1", func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }, ""},
		{"ranges that only kube-proxy applies", "w1", func(s *corev1.Service) {
			s.Annotations[AnnotationSourceRanges], s.Spec.LoadBalancerSourceRanges = "10.0.0.0/8", []string{"10.0.0.0/9"}
		}, ""},
		{"ranges that the filter applies", "w2", func(s *corev1.Service) {
			s.Annotations[AnnotationSourceRangesDeny], s.Annotations[KubernetesSourceRanges] = "10.1.0.0/16", "10.0.0.0/7"
			s.Spec.LoadBalancerSourceRanges, s.Spec.ExternalTrafficPolicy = []string{"10.0.0.0/9"}, corev1.ServiceExternalTrafficPolicyLocal
		}, "192.0.2.1 TCP/80 at [10.0.0.2:8080] false"},
		{"ranges that kube-proxy does not know", "w2", func(s *corev1.Service) {
			s.Annotations[AnnotationSourceRanges], s.Spec.ExternalTrafficPolicy = "10.0.0.0/8", corev1.ServiceExternalTrafficPolicyLocal
		}, "192.0.2.1 TCP/80 at [10.0.0.2:8080] false"},
		{"another port", "w1", func(s *corev1.Service) { s.Spec.Ports[0].Name = "none" }, ""},
		{"another protocol", "w1", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP },
			"192.0.2.1 UDP/80 at [10.0.0.1:8081 10.0.0.2:8081] true; 2001:db8::1 UDP/80 at [[fd00::3]:8081] true"},
		{"very many ports", "w1", func(s *corev1.Service) { s.Spec.Ports = slices.Repeat(s.Spec.Ports, maxStartPorts+1) }, ""},
		{"not new", "w1", func(s *corev1.Service) { s.Name = "t" }, ""},
	} {
		s := serviceObject("s", func(s *corev1.Service) {
			s.Spec.Ports = []corev1.ServicePort{{Name: web, Protocol: corev1.ProtocolTCP, Port: 80}}
		})
		tt.change(s)
		fresh := map[lb.Key][]netip.Addr{{Namespace: s.Namespace, Name: "s"}: {netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
		var got []string
		for _, st := range Starts(fresh, []*corev1.Service{s}, all, tt.node) {
			got = append(got, fmt.Sprintf("%s %s/%d at %v %v", st.Address, st.Protocol, st.Port, st.Endpoints, st.Masquerade))
		}
		if text := strings.Join(got, "; "); text != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
		}
	}
}
