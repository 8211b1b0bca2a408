package config

import (
	"fmt"
	"net/netip"
	"slices"
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
	served := []*lb.Service{{Key: own4, Proxy: &lb.Proxy{}, ClusterIPs: both},
		{Key: web, Proxy: &lb.Proxy{}, ClusterIPs: both}, {Key: kernel},
	}
	got, left := ReadyEndpoints(lb.State{Services: served}, o, proxies)
	want := map[lb.Key]map[uint16][]netip.AddrPort{web: {80: {netip.MustParseAddrPort("[fd00::1]:8080"), netip.MustParseAddrPort("[fd00::3]:8080")}},
		own4: {80: {netip.MustParseAddrPort("10.0.0.6:8080")}}}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if len(left) > 0 {
		t.Errorf("left out: %v", left)
	}
}

// TestLeftOut: who writes EndpointSlices leads no proxy to where nothing may go through one.
func TestLeftOut(t *testing.T) {
	port, web, proxies := int32(80), lb.Key{Namespace: "shop", Name: "web"}, lb.Key{Namespace: "holdfast-system", Name: "proxy"}
	slice := func(of lb.Key, family discoveryv1.AddressType, addresses ...string) *discoveryv1.EndpointSlice {
		o := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Labels: map[string]string{discoveryv1.LabelServiceName: of.Name}},
			AddressType: family, Ports: []discoveryv1.EndpointPort{{Port: &port}}}
		for _, a := range addresses {
			o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
		}
		return o
	}
	bad4 := []string{"127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0", "255.255.255.255", "10.244.0.9", "192.0.2.77", "198.51.100.1"}
	bad6 := []string{"::1", "fe80::1", "ff02::1", "::", "::ffff:127.0.0.1", "fe80::1%eth0", "fd00::1%eth0", "::ffff:192.0.2.77", "fd00::9", "2001:db8::7"}
	var many []string
	for i := range maxProxyEndpoints + 1 {
		many = append(many, fmt.Sprintf("10.1.%d.%d", i/250, i%250+1))
	}
	state := lb.State{Pools: []lb.Pool{{Ranges: []lb.Range{{From: netip.MustParseAddr("192.0.2.0"), To: netip.MustParseAddr("192.0.2.255")},
		{From: netip.MustParseAddr("2001:db8::"), To: netip.MustParseAddr("2001:db8::ff")}}}}}
	for name, tt := range map[string]struct {
		family    discoveryv1.AddressType
		cluster   string
		good, bad []string
	}{
		"IPv4":   {discoveryv1.AddressTypeIPv4, "10.96.0.1", []string{"10.244.0.5"}, bad4},
		"IPv6":   {discoveryv1.AddressTypeIPv6, "fd00:96::1", []string{"fd00::5"}, bad6},
		"number": {discoveryv1.AddressTypeIPv4, "10.96.0.1", many[:maxProxyEndpoints], many[maxProxyEndpoints:]},
	} {
		s := &lb.Service{Key: web, Proxy: &lb.Proxy{}, ClusterIPs: []netip.Addr{netip.MustParseAddr(tt.cluster)}}
		state.Services = []*lb.Service{s, {Key: lb.Key{Name: "other"}, Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")}}}
		o := Objects{
			Services: []*corev1.Service{
				{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}},
			},
			EndpointSlices: []*discoveryv1.EndpointSlice{slice(web, tt.family, slices.Concat(tt.bad, tt.good)...),
				slice(proxies, discoveryv1.AddressTypeIPv4, "10.244.0.9"), slice(proxies, discoveryv1.AddressTypeIPv6, "fd00::9")},
		}
		use, left := ReadyEndpoints(state, o, proxies)
		for what, both := range map[string][2][]string{"used": {tt.good, addresses(use[web][80])}, "left out": {tt.bad, addresses(left[web])}} {
			slices.Sort(both[0])
			if diff := cmp.Diff(both[0], both[1]); diff != "" {
				t.Errorf("%s, %s: -want +got\n%s", name, what, diff)
			}
		}
		state.Services[0].ProxyRefused = true
		if use, left := ReadyEndpoints(state, o, proxies); len(use)+len(left) > 0 {
			t.Errorf("%s: a refused Service has %v without %v", name, use, left)
		}
	}
}

func addresses(of []netip.AddrPort) (out []string) {
	for _, e := range of {
		out = append(out, e.Addr().String())
	}
	slices.Sort(out)
	return out
}
