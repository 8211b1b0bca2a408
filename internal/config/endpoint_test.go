package config

import (
	"fmt"
	"testing"

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
			slice("a", endpoint("dead", false, "10.0.0.1"), endpoint("dead", true, "10.0.0.2"), endpoint("live", false, "10.0.0.3"), endpoint("dead", false, "name", "")),
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
