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

// TestProxyPods: the pods behind the proxies' Service, each with the addresses of both families, and no others.
func TestProxyPods(t *testing.T) {
	endpoint := func(pod, address string, conditions discoveryv1.EndpointConditions) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, NodeName: new("on-" + pod), Conditions: conditions,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: pod}}
	}
	slice := func(service string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-system", Labels: map[string]string{discoveryv1.LabelServiceName: service}}, Endpoints: endpoints,
		}
	}
	ready := discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true)}
	ends := discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	nowhere := endpoint("x", "10.0.0.9", ready)
	nowhere.NodeName = nil
	objects := Objects{EndpointSlices: []*discoveryv1.EndpointSlice{
		slice("proxies", endpoint("b", "fd00::2", ready), endpoint("a", "fd00::1", ends), endpoint("e", "fd00::5", ready)),
		slice("proxies", endpoint("e", "10.0.0.5", ends), endpoint("a", "10.0.0.1", ready), endpoint("b", "10.0.0.2", ready), nowhere, endpoint("c", "host", ready),
			endpoint("d", "10.0.0.4", discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false)}), endpoint("b", "10.0.0.22", ready)),
		slice("web", endpoint("w", "10.0.0.7", ready)),
	}}
	opt := Options{Proxy: ProxyOptions{Enabled: true, Service: lb.Key{Namespace: "holdfast-system", Name: "proxies"}}}
	addr := netip.MustParseAddr
	want := []lb.ProxyPod{
		{Name: "a", Node: "on-a", Addresses: []netip.Addr{addr("10.0.0.1"), addr("fd00::1")}},
		{Name: "b", Node: "on-b", Addresses: []netip.Addr{addr("10.0.0.2"), addr("fd00::2")}, Ready: true},
		{Name: "e", Node: "on-e", Addresses: []netip.Addr{addr("10.0.0.5"), addr("fd00::5")}},
	}
	same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	if s, _ := Compile(objects, opt); cmp.Diff(want, s.ProxyPods, same) != "" {
		t.Error(cmp.Diff(want, s.ProxyPods, same))
	}
	for name, other := range map[string]Options{"disabled": {}, "another data path": {Proxy: opt.Proxy, OtherDataPath: true}} {
		if s, _ := Compile(objects, other); s.ProxyPods != nil {
			t.Errorf("%s: %v", name, s.ProxyPods)
		}
	}
}
