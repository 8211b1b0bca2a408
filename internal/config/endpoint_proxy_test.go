package config

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestReadyEndpoints(t *testing.T) {
	yes, no, http, tcp, udp, port := true, false, "http", corev1.ProtocolTCP, corev1.ProtocolUDP, int32(8080)
	slice := func(namespace, service string, family discoveryv1.AddressType, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: family, Endpoints: endpoints,
			Ports: []discoveryv1.EndpointPort{{Name: &http, Protocol: &tcp, Port: &port}, {Name: &http, Protocol: &udp, Port: &port}},
		}
	}
	one := func(ready *bool, a string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
	}
	web, kernel, proxies := lb.Key{Namespace: "shop", Name: "web"}, lb.Key{Namespace: "shop", Name: "kernel"}, lb.Key{Namespace: "holdfast-system", Name: "proxy"}
	ports := []corev1.ServicePort{{Name: "http", Protocol: tcp, Port: 80}, {Name: "http", Protocol: udp, Port: 53}}
	o := Objects{
		Services: []*corev1.Service{
			{ObjectMeta: metav1.ObjectMeta{Namespace: web.Namespace, Name: web.Name}, Spec: corev1.ServiceSpec{Ports: ports}},
			{ObjectMeta: metav1.ObjectMeta{Namespace: kernel.Namespace, Name: kernel.Name}, Spec: corev1.ServiceSpec{Ports: ports}},
		},
		EndpointSlices: []*discoveryv1.EndpointSlice{
			slice("shop", "web", discoveryv1.AddressTypeIPv6, one(&yes, "fd00::1"), one(&no, "fd00::2")),
			slice("shop", "web", discoveryv1.AddressTypeIPv4, one(&yes, "10.0.0.1")),
			slice("shop", "web", discoveryv1.AddressTypeIPv6, one(nil, "fd00::3")),
			slice("shop", "kernel", discoveryv1.AddressTypeIPv4, one(&yes, "10.0.0.4")),
			slice("other", "web", discoveryv1.AddressTypeIPv6, one(&yes, "fd00::5")),
			slice("holdfast-system", "proxy", discoveryv1.AddressTypeIPv4, one(&no, "10.0.0.9")),
		},
	}
	// Its second family alone has endpoints, as where a user writes them.
	own4 := lb.Key{Namespace: "shop", Name: "own4"}
	o.Services = append(o.Services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: own4.Namespace, Name: own4.Name},
		Spec: corev1.ServiceSpec{Ports: ports}})
	o.EndpointSlices = append(o.EndpointSlices, slice("shop", "own4", discoveryv1.AddressTypeIPv4, one(&yes, "10.0.0.6")))
	both := []netip.Addr{netip.MustParseAddr("fd00:1::1"), netip.MustParseAddr("10.96.0.1")}
	served := []lb.Service{{Key: own4, Proxy: &lb.Proxy{}, ClusterIPs: both},
		{Key: web, Proxy: &lb.Proxy{}, ClusterIPs: both}, {Key: kernel},
	}
	got, own := ReadyEndpoints(served, o, proxies)
	want := map[lb.Key]map[uint16][]netip.AddrPort{web: {80: {netip.MustParseAddrPort("[fd00::1]:8080"), netip.MustParseAddrPort("[fd00::3]:8080")}},
		own4: {80: {netip.MustParseAddrPort("10.0.0.6:8080")}}}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if len(own) != 1 || !own[netip.MustParseAddr("10.0.0.9")] {
		t.Errorf("the proxies have %v", own)
	}
}
