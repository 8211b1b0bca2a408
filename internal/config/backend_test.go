package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// backendsText formats the Backends of a Service: families, ports, nodes, "!" after a node whose endpoints terminate,
// and * for an endpoint without a node.
func backendsText(s *lb.Service) string {
	var parts []string
	for b := &s.Backends; b != nil && b.Families != 0; b = b.Next {
		var families, ports, nodes []string
		for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
			if b.Families.Has(f) {
				families = append(families, string(f))
			}
		}
		for _, p := range b.Ports {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
		if b.Ports == nil {
			ports = []string{"all"}
		}
		for _, node := range b.Nodes {
			if b.Terminating.Has(node) {
				node += "!"
			}
			nodes = append(nodes, node)
		}
		if b.Anywhere {
			nodes = append(nodes, "*")
		}
		parts = append(parts, strings.Join(families, "+")+" "+strings.Join(ports, ",")+" on "+strings.Join(nodes, ","))
	}
	if s.IgnoredByKubeProxy {
		parts = append(parts, "ignored")
	}
	return strings.Join(parts, "; ")
}

// podsSlice returns a slice of Service web. Each word is a node with conditions: "+" ready, "-" not ready, "~"
// terminating and serving, "?" no condition written. The node "none" stands for no node.
func podsSlice(family discoveryv1.AddressType, ports []discoveryv1.EndpointPort,
	words string) *discoveryv1.EndpointSlice {
	address := map[discoveryv1.AddressType]string{
		discoveryv1.AddressTypeIPv4: "10.244.1.5", discoveryv1.AddressTypeIPv6: "fd00:244::5",
		discoveryv1.AddressTypeFQDN: "www.example.com",
	}[family]
	var endpoints []discoveryv1.Endpoint
	for word := range strings.FieldsSeq(words) {
		e := discoveryv1.Endpoint{Addresses: []string{address}}
		if node := word[1:]; node != "none" {
			e.NodeName = &node
		}
		switch word[0] {
		case '+':
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}
		case '-':
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false)}
		case '~':
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
		}
		endpoints = append(endpoints, e)
	}
	return of(family, sliceObject("web", endpoints...), ports...)
}

func portsNamed(names ...string) (ports []discoveryv1.EndpointPort) {
	for i, name := range names {
		ports = append(ports, discoveryv1.EndpointPort{Name: new(name), Port: new(int32(8080 + i))})
	}
	return ports
}

// TestBackends: the nodes on which kube-proxy serves a Service with the ports http and https, for each family and port.
func TestBackends(t *testing.T) {
	const v4, v6, names = discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN
	both := portsNamed("http", "https")
	local := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	conditions := func(c discoveryv1.EndpointConditions) *discoveryv1.EndpointSlice {
		slice := podsSlice(v4, both, "?w1")
		slice.Endpoints[0].Conditions = c
		return slice
	}
	labelledSlice := func(label string) *discoveryv1.EndpointSlice {
		slice := podsSlice(v4, both, "+w1")
		slice.Labels[label] = ""
		return slice
	}
	list := func(s ...*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice { return s }
	for _, tt := range []struct {
		name   string
		change func(*corev1.Service)
		slices []*discoveryv1.EndpointSlice
		want   string
	}{
		{
			"both families alike",
			nil, list(podsSlice(v4, both, "+w1 +w2"), podsSlice(v6, both, "+w2 +w1")), "IPv4+IPv6 all on w1,w2",
		},
		{"pods of one family", nil, list(podsSlice(v4, both, "+w1")), "IPv4 all on w1"},
		{
			"families on different nodes",
			local, list(podsSlice(v4, both, "+w1"), podsSlice(v6, both, "+w2")), "IPv4 all on w1; IPv6 all on w2",
		},
		{"a single-stack Service", func(s *corev1.Service) { s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1] },
			list(podsSlice(v4, both, "+w1"), podsSlice(v6, both, "+w2")), "IPv4 all on w1"},
		{"another port", nil, list(podsSlice(v4, portsNamed("grpc"), "+w1")), ""},
		{"one port of two", nil, list(podsSlice(v4, portsNamed("https"), "+w1")), "IPv4 443/TCP on w1"},
		{"no ports", nil, list(podsSlice(v4, nil, "+w1")), ""},
		{"a port without a number", nil, list(podsSlice(v4, []discoveryv1.EndpointPort{
			{Name: new("http")}, {Name: new("https"), Port: new(int32(0))},
		}, "+w1")), ""},
		{"another protocol", nil, list(podsSlice(v4, []discoveryv1.EndpointPort{
			{Name: new("http"), Port: new(int32(1)), Protocol: new(corev1.ProtocolUDP)},
		}, "+w1")), ""},
		{"host names", nil, list(podsSlice(names, both, "+w1")), ""},
		{
			"ports on different nodes",
			local, list(podsSlice(v4, portsNamed("http"), "+w1"), podsSlice(v4, portsNamed("https"), "+w2")),
			"IPv4 80/TCP on w1; IPv4 443/TCP on w2",
		},
		{
			"a port renamed in a rollout",
			nil, list(podsSlice(v4, portsNamed("web", "https"), "+w1"), podsSlice(v4, both, "+w2")),
			"IPv4 80/TCP on w2; IPv4 443/TCP on w1,w2",
		},
		{"two slices", nil, list(podsSlice(v4, both, "+w1"), podsSlice(v4, both, "+w2")), "IPv4 all on w1,w2"},
		{"no node", nil, list(podsSlice(v4, both, "+none")), "IPv4 all on *"},
		{"nothing written", nil, list(podsSlice(v4, both, "?w1")), "IPv4 all on w1"},
		{"not ready", nil, list(podsSlice(v4, both, "-w1 +w2")), "IPv4 all on w2"},
		{"terminating beside ready", nil, list(podsSlice(v4, both, "~w1 +w2")), "IPv4 all on w2"},
		{"all terminating", nil, list(podsSlice(v4, both, "~w1 -w2")), "IPv4 all on w1"},
		{
			"terminating beside ready, Local",
			local, list(podsSlice(v4, both, "~w1 +w2 ~w2 ~w3 ~none")), "IPv4 all on w1!,w2,w3!,*",
		},
		{
			"terminating in one family, Local",
			local, list(podsSlice(v4, both, "~w1"), podsSlice(v6, both, "+w1")), "IPv4 all on w1!; IPv6 all on w1",
		},
		{"serving, not terminating", nil,
			list(conditions(discoveryv1.EndpointConditions{
				Ready: new(false), Serving: new(true), Terminating: new(false),
			})), ""},
		{"serving, terminating unknown", nil,
			list(conditions(discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true)})), ""},
		{"terminating, serving unknown", nil,
			list(conditions(discoveryv1.EndpointConditions{Ready: new(false), Terminating: new(true)})), "IPv4 all on w1"},
		{"another service proxy", func(s *corev1.Service) { s.Labels = map[string]string{LabelServiceProxyName: "mesh"} },
			list(podsSlice(v4, both, "+w1")), "ignored"},
		{"a slice for another service proxy", nil, list(labelledSlice(LabelServiceProxyName)), "ignored"},
		{"a headless slice", nil, list(labelledSlice(LabelHeadless)), "ignored"},
		{
			"a headless slice beside another",
			nil, list(labelledSlice(LabelHeadless), podsSlice(v4, both, "+w2")), "IPv4 all on w2",
		},
		{"no slice", nil, nil, ""},
	} {
		s := serviceObject("web", func(s *corev1.Service) {
			s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}}
		})
		if tt.change != nil {
			tt.change(s)
		}
		state, _ := Compile(Objects{Services: []*corev1.Service{s}, EndpointSlices: numbered(tt.slices...)}, served())
		if got := backendsText(state.Services[0]); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestBackendsOfOtherDataPath: how another program than kube-proxy chooses endpoints is not known, so that any endpoint
// counts.
func TestBackendsOfOtherDataPath(t *testing.T) {
	s := serviceObject("web", func(s *corev1.Service) { s.Labels = map[string]string{LabelServiceProxyName: "cilium"} })
	slice := podsSlice(discoveryv1.AddressTypeIPv4, nil, "-w1 +w2 ?w3 ?w4")
	slice.Endpoints[3].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true)}
	opt := served()
	opt.OtherDataPath = true
	state, _ := Compile(Objects{Services: []*corev1.Service{s}, EndpointSlices: []*discoveryv1.EndpointSlice{slice}}, opt)
	if got, want := backendsText(state.Services[0]), "IPv4+IPv6 all on w2,w3,w4"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
