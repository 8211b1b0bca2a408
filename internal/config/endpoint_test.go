package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sliceObject is an IPv4 slice with one TCP port, of a Service of namespace default unless its name has another.
func sliceObject(service string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	namespace, name, other := strings.Cut(service, "/")
	if !other {
		namespace, name = "default", service
	}
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		Labels: map[string]string{discoveryv1.LabelServiceName: name}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: endpoints,
		Ports:     []discoveryv1.EndpointPort{{Port: new(int32(8080))}}}
}

// of gives a slice a family and ports.
func of(family discoveryv1.AddressType, o *discoveryv1.EndpointSlice,
	ports ...discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	o.AddressType, o.Ports = family, ports
	return o
}

func TestLostEndpoints(t *testing.T) {
	slice := sliceObject
	endpoint := func(node string, ready bool, addresses ...string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{
			NodeName: &node, Addresses: addresses, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		}
	}
	other := serviceObject("other")
	other.Spec.Type = corev1.ServiceTypeClusterIP
	var o Objects
	for _, s := range []*corev1.Service{serviceObject("a"), serviceObject("b"), other} {
		o.ServicesByKey = o.ServicesByKey.Put(KeyOf(s), s)
	}
	for i, s := range []*discoveryv1.EndpointSlice{
		slice("a", endpoint("dead", false, "10.0.0.1"), endpoint("dead", true, "10.0.0.2"),
			endpoint("live", false, "10.0.0.3"), endpoint("dead", false, "name", "")),
		slice("a", endpoint("dead", false, "2001:db8::1"), discoveryv1.Endpoint{Addresses: []string{"10.0.0.4"}}),
		slice("b", endpoint("dead", false, "10.0.0.2", "10.0.0.5")),
		slice("other", endpoint("dead", false, "10.0.0.6")), slice("missing", endpoint("dead", false, "10.0.0.7")),
		// These serve again, on a live node and on an unknown node.
		slice("a", endpoint("dead", false, "10.0.0.8", "10.0.0.9")),
		slice("other", endpoint("live", true, "10.0.0.8")),
		slice("missing", discoveryv1.Endpoint{Addresses: []string{"10.0.0.9"}}),
	} {
		o.SlicesByKey = o.SlicesByKey.Put(lb.Key{Name: fmt.Sprint(i)}, s)
	}
	var c Compiler
	expect := func(node, want string) {
		t.Helper()
		c.Compile(o, Options{Default: true})
		for range 2 {
			if got := c.LostEndpoints(map[string]bool{node: true}); fmt.Sprint(got) != want {
				t.Errorf("%v, want %s", got, want)
			}
		}
	}
	expect("dead", "map[10.0.0.1:true 10.0.0.5:true 2001:db8::1:true]")
	expect("live", "map[10.0.0.3:true]")
	expect("dead", "map[10.0.0.1:true 10.0.0.5:true 2001:db8::1:true]")
	o.SlicesByKey = o.SlicesByKey.Without(slices.Collect(o.SlicesByKey.Keys())[1:]...)
	expect("dead", "map[10.0.0.1:true]")
	o.ServicesByKey = o.ServicesByKey.Without(lb.Key{Namespace: "default", Name: "a"})
	expect("dead", "map[]")
}

// TestStarts: connections go where kube-proxy would send them.
func TestStarts(t *testing.T) {
	yes, no := true, false
	web, other := "web", "other"
	endpoint := func(address, node string, c discoveryv1.EndpointConditions) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node, Conditions: c}
	}
	slice := func(service string, family discoveryv1.AddressType, port int32,
		endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return of(family, sliceObject(service, endpoints...), discoveryv1.EndpointPort{Name: &other, Port: new(int32(9))},
			discoveryv1.EndpointPort{Name: &web, Port: new(port + 1), Protocol: new(corev1.ProtocolUDP)},
			discoveryv1.EndpointPort{Name: &web, Port: &port})
	}
	ready := discoveryv1.EndpointConditions{Ready: &yes}
	ending := discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
	all := numbered(
		slice("s", discoveryv1.AddressTypeIPv4, 8080, endpoint("10.0.0.2", "w2", ready),
			endpoint("10.0.0.1", "w1", ready), endpoint("10.0.0.3", "w3", ending), endpoint("bad", "w1", ready)),
		slice("s", discoveryv1.AddressTypeIPv4, 8081, endpoint("10.0.0.9", "w2", discoveryv1.EndpointConditions{Ready: &no})),
		slice("s", discoveryv1.AddressTypeIPv6, 8080, endpoint("fd00::3", "w3", ending)),
		slice("t", discoveryv1.AddressTypeIPv4, 8080, endpoint("10.0.0.7", "w1", ready)),
	)
	for _, tt := range []struct {
		name, node string
		change     func(*corev1.Service)
		want       string
	}{
		{
			"on all nodes",
			"w1", func(*corev1.Service) {},
			"192.0.2.1 TCP/80 at [10.0.0.1:8080 10.0.0.2:8080] true; 2001:db8::1 TCP/80 at [[fd00::3]:8080] true",
		},
		{
			"on this node",
			"w2", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal },
			"192.0.2.1 TCP/80 at [10.0.0.2:8080] false",
		},
		{"affinity", "w1", func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }, ""},
		{"ranges that only kube-proxy applies", "w1", func(s *corev1.Service) {
			s.Annotations[AnnotationSourceRanges], s.Spec.LoadBalancerSourceRanges = "10.0.0.0/8", []string{"10.0.0.0/9"}
		}, ""},
		{"ranges that the filter applies", "w2", func(s *corev1.Service) {
			s.Annotations[AnnotationSourceRangesDeny], s.Annotations[KubernetesSourceRanges] = "10.1.0.0/16", "10.0.0.0/7"
			s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/9"}
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}, "192.0.2.1 TCP/80 at [10.0.0.2:8080] false"},
		{"ranges that kube-proxy does not know", "w2", func(s *corev1.Service) {
			s.Annotations[AnnotationSourceRanges] = "10.0.0.0/8"
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}, "192.0.2.1 TCP/80 at [10.0.0.2:8080] false"},
		{"another port", "w1", func(s *corev1.Service) { s.Spec.Ports[0].Name = "none" }, ""},
		{"another protocol", "w1", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP },
			"192.0.2.1 UDP/80 at [10.0.0.1:8081 10.0.0.2:8081] true; 2001:db8::1 UDP/80 at [[fd00::3]:8081] true"},
		{
			"very many ports",
			"w1", func(s *corev1.Service) { s.Spec.Ports = slices.Repeat(s.Spec.Ports, maxStartPorts+1) }, "",
		},
		{"not new", "w1", func(s *corev1.Service) { s.Name = "t" }, ""},
		{"proxied: it would lead past the proxies", "w1", proxiedStatus, ""},
	} {
		s := serviceObject("s", func(s *corev1.Service) {
			s.Spec.Ports = []corev1.ServicePort{{Name: web, Protocol: corev1.ProtocolTCP, Port: 80}}
		})
		tt.change(s)
		fresh := map[lb.Key][]netip.Addr{{Namespace: s.Namespace, Name: "s"}: {
			netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"),
		}}
		var c Compiler
		c.Compile(Objects{Services: []*corev1.Service{s}, EndpointSlices: all}, served())
		var got []string
		for _, st := range c.Starts(fresh, tt.node) {
			got = append(got, fmt.Sprintf("%s %s/%d at %v %v", st.Address, st.Protocol, st.Port, st.Endpoints, st.Masquerade))
		}
		if text := strings.Join(got, "; "); text != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
		}
	}
}

func TestReadyEndpoints(t *testing.T) {
	yes := true
	no := false
	http := "http"
	tcp := corev1.ProtocolTCP
	udp := corev1.ProtocolUDP
	port := int32(8080)
	slice := func(service string, family discoveryv1.AddressType,
		endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return of(family, sliceObject(service, endpoints...),
			discoveryv1.EndpointPort{Name: &http, Protocol: &tcp, Port: &port},
			discoveryv1.EndpointPort{Name: &http, Protocol: &udp, Port: &port})
	}
	one := func(ready *bool, a string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
	}
	web := lb.Key{Namespace: "shop", Name: "web"}
	kernel := lb.Key{Namespace: "shop", Name: "kernel"}
	proxies := lb.Key{Namespace: "holdfast-system", Name: "proxy"}
	ports := []corev1.ServicePort{{Name: "http", Protocol: tcp, Port: 80}, {Name: "http", Protocol: udp, Port: 53}}
	o := Objects{
		EndpointSlices: numbered(
			slice("shop/web", discoveryv1.AddressTypeIPv6, one(&yes, "fd00::1"), one(&no, "fd00::2")),
			slice("shop/web", discoveryv1.AddressTypeIPv4, one(&yes, "10.0.0.1")),
			slice("shop/web", discoveryv1.AddressTypeIPv6, one(nil, "fd00::3")),
			slice("shop/kernel", discoveryv1.AddressTypeIPv4, one(&yes, "10.0.0.4")),
			slice("other/web", discoveryv1.AddressTypeIPv6, one(&yes, "fd00::5")),
			slice("holdfast-system/proxy", discoveryv1.AddressTypeIPv4, one(&no, "10.0.0.9")),
			// Only its second family has endpoints, as if a user wrote them.
			slice("shop/own4", discoveryv1.AddressTypeIPv4, one(&yes, "10.0.0.6")),
		),
	}
	own4 := lb.Key{Namespace: "shop", Name: "own4"}
	for _, key := range []lb.Key{web, kernel, own4} {
		o.Services = append(o.Services, serviceObject(key.Name, func(s *corev1.Service) {
			s.Namespace = key.Namespace
			s.Spec.Ports = ports
		}))
	}
	both := []netip.Addr{netip.MustParseAddr("fd00:1::1"), netip.MustParseAddr("10.96.0.1")}
	served := []*lb.Service{{Key: own4, Proxy: &lb.Proxy{}, ClusterIPs: both},
		{Key: web, Proxy: &lb.Proxy{}, ClusterIPs: both}, {Key: kernel},
	}
	var c Compiler
	c.Compile(o, Options{})
	got, left := c.ReadyEndpoints(lb.State{Services: served}, ProxyOptions{Service: proxies})
	want := map[lb.Key]map[uint16][]netip.AddrPort{
		web:  {80: {netip.MustParseAddrPort("[fd00::1]:8080"), netip.MustParseAddrPort("[fd00::3]:8080")}},
		own4: {80: {netip.MustParseAddrPort("10.0.0.6:8080")}},
	}
	same(t, "result", want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }))
	if len(left) > 0 {
		t.Errorf("left out: %v", left)
	}
	o.EndpointSlices = slices.Clone(o.EndpointSlices)
	changed := slice("shop/web", discoveryv1.AddressTypeIPv6, one(&yes, "fd00::7"))
	changed.Name = o.EndpointSlices[0].Name
	o.EndpointSlices[0] = changed
	for range 2 {
		c.Compile(o, Options{})
		got, _ = c.ReadyEndpoints(lb.State{Services: served}, ProxyOptions{Service: proxies})
		if fmt.Sprint(got[web][80]) != "[[fd00::3]:8080 [fd00::7]:8080]" {
			t.Errorf("after a change: %v", got[web])
		}
	}
}

// TestLeftOut: a user who writes EndpointSlices cannot make a proxy connect to a forbidden address.
func TestLeftOut(t *testing.T) {
	port := int32(80)
	web := lb.Key{Namespace: "shop", Name: "web"}
	proxies := lb.Key{Namespace: "holdfast-system", Name: "proxy"}
	slice := func(service lb.Key, family discoveryv1.AddressType, addresses ...string) *discoveryv1.EndpointSlice {
		o := of(family, sliceObject(service.String()), discoveryv1.EndpointPort{Port: &port})
		for _, a := range addresses {
			o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
		}
		return o
	}
	bad4 := []string{
		"127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0", "255.255.255.255", "10.244.0.9", "192.0.2.77",
		"198.51.100.1",
	}
	bad6 := []string{
		"::1", "fe80::1", "ff02::1", "::", "::ffff:127.0.0.1", "fe80::1%eth0", "fd00::1%eth0", "::ffff:192.0.2.77",
		"fd00::9", "2001:db8::7",
	}
	var many []string
	for i := range maxProxyEndpoints + 1 {
		many = append(many, fmt.Sprintf("10.1.%d.%d", i/250, i%250+1))
	}
	state := lb.State{Pools: []lb.Pool{{Ranges: []lb.Range{
		{From: netip.MustParseAddr("192.0.2.0"), To: netip.MustParseAddr("192.0.2.255")},
		{From: netip.MustParseAddr("2001:db8::"), To: netip.MustParseAddr("2001:db8::ff")},
	}}}}
	for name, tt := range map[string]struct {
		family    discoveryv1.AddressType
		cluster   string
		services  int
		good, bad []string
	}{
		"IPv4":   {discoveryv1.AddressTypeIPv4, "10.96.0.1", 0, []string{"10.244.0.5"}, bad4},
		"IPv6":   {discoveryv1.AddressTypeIPv6, "fd00:96::1", 0, []string{"fd00::5"}, bad6},
		"number": {discoveryv1.AddressTypeIPv4, "10.96.0.1", 0, many[:maxProxyEndpoints], many[maxProxyEndpoints:]},
		"share":  {discoveryv1.AddressTypeIPv4, "10.96.0.1", 2, many[:2*proxiedEndpoints], many[2*proxiedEndpoints:]},
	} {
		s := &lb.Service{Key: web, Proxy: &lb.Proxy{}, ClusterIPs: []netip.Addr{netip.MustParseAddr(tt.cluster)}}
		state.Services = []*lb.Service{
			s, {Key: lb.Key{Name: "other"}, Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")}},
		}
		o := Objects{
			Services: []*corev1.Service{
				{
					ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
					Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
				},
			},
			EndpointSlices: numbered(slice(web, tt.family, slices.Concat(tt.bad, tt.good)...),
				slice(proxies, discoveryv1.AddressTypeIPv4, "10.244.0.9"), slice(proxies, discoveryv1.AddressTypeIPv6, "fd00::9")),
		}
		var c Compiler
		c.Compile(o, Options{})
		use, left := c.ReadyEndpoints(state, ProxyOptions{Service: proxies, MaxServices: tt.services})
		for what, both := range map[string][2][]string{
			"used": {tt.good, addresses(use[web][80])}, "left out": {tt.bad, addresses(left[web])},
		} {
			if diff := cmp.Diff(slices.Sorted(slices.Values(both[0])), both[1]); diff != "" {
				t.Errorf("%s, %s: -want +got\n%s", name, what, diff)
			}
		}
		state.Services[0].ProxyRefused = true
		if use, left := c.ReadyEndpoints(state, ProxyOptions{Service: proxies}); len(use)+len(left) > 0 {
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
