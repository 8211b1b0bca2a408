package config

import (
	"fmt"
	"slices"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPodsElsewhere samples one pod of each other node and family, and no address of a node.
func TestPodsElsewhere(t *testing.T) {
	var o Objects
	addNode := func(name, address string) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		o.NodesByKey = o.NodesByKey.Put(lb.Key{Name: name}, n)
	}
	endpoint := func(node, address string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{NodeName: &node, Addresses: []string{address}}
	}
	add := func(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		slice := sliceObject("a", endpoints...)
		o.SlicesByKey = o.SlicesByKey.Put(lb.Key{Name: fmt.Sprint(o.SlicesByKey.Len())}, slice)
		return slice
	}
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for _, a := range PodsElsewhere(o, "w1") {
			got = append(got, a.String())
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}

	for i := range 5 {
		addNode(fmt.Sprint("w", i+1), fmt.Sprint("192.0.2.", i+1))
	}
	unready := endpoint("w4", "10.0.4.1")
	unready.Conditions.Ready = new(false)
	add(endpoint("w1", "10.0.1.1"), endpoint("w2", "192.0.2.2"), endpoint("w3", "name"), endpoint("", "10.0.9.9"),
		endpoint("forged", "10.0.9.7"), unready,
		discoveryv1.Endpoint{NodeName: new("w3")}, discoveryv1.Endpoint{Addresses: []string{"10.0.9.8"}})
	udp := add(endpoint("w5", "10.0.5.1"))
	udp.Ports[0].Protocol = new(corev1.ProtocolUDP)
	expect()
	add(endpoint("w2", "10.0.2.1"), endpoint("w2", "10.0.2.2"), endpoint("w2", "fd00::2:1"), endpoint("w3", "10.0.3.1"))
	expect("10.0.2.1:8080", "10.0.3.1:8080", "[fd00::2:1]:8080")

	for i := range 100 {
		addNode(fmt.Sprint("n", i), fmt.Sprint("192.0.3.", i))
		add(endpoint(fmt.Sprint("n", i), fmt.Sprint("10.1.0.", i)))
	}
	if got := len(PodsElsewhere(o, "w1")); got != maxSampledPods {
		t.Errorf("%d pods, want %d", got, maxSampledPods)
	}
}
