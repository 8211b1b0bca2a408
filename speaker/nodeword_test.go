package main

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// nodeWordObjects are 200 Services of both families with source ranges, on three nodes, one of which lists addresses.
func nodeWordObjects(listed ...string) config.Objects {
	var o config.Objects
	for i := range 3 {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("w", i+1)}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprint("10.0.0.", i+1)}}
		o.Nodes = append(o.Nodes, n)
	}
	for _, a := range listed {
		o.Nodes[2].Status.Addresses = append(o.Nodes[2].Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	o.Pools = []*v1beta1.IPAddressPool{{ObjectMeta: metav1.ObjectMeta{Name: "lan"},
		Spec: v1beta1.IPAddressPoolSpec{Addresses: []string{"192.0.2.0/24", "2001:db8::/112"}}}}
	o.L2Advertisements = []*v1beta1.L2Advertisement{{ObjectMeta: metav1.ObjectMeta{Name: "l2"}}}
	o.BGPAdvertisements = []*v1beta1.BGPAdvertisement{{ObjectMeta: metav1.ObjectMeta{Name: "bgp"}}}
	o.Peers = []*v1beta1.BGPPeer{{ObjectMeta: metav1.ObjectMeta{Name: "router"},
		Spec: v1beta1.BGPPeerSpec{MyASN: 64512, PeerASN: 64513, PeerAddress: "10.0.0.100", DualStackAddressFamily: true}}}
	for i := range 200 {
		name, port, ready := fmt.Sprintf("s%03d", i), int32(8080), true
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
			Annotations: map[string]string{config.AnnotationSourceRanges: "198.51.100.0/24,2001:db8:1::/48"}}}
		s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1", "fd00::1"},
			Ports: []corev1.ServicePort{{Port: 80}}}
		for _, a := range servedBy(i) {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
		}
		o.Services = append(o.Services, s)
		o.EndpointSlices = append(o.EndpointSlices, &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		})
	}
	return o
}

// servedBy returns the addresses of the Service of this number.
func servedBy(i int) []string {
	return []string{fmt.Sprint("192.0.2.", i+1), fmt.Sprintf("2001:db8::%x", i+1)}
}

// TestNodeWord: a Node that lists 200 served addresses of both families as its own changes no announcement, no route and no
// filter of any other node, nor what the controller says of the filters. No Service gets an address that it lists and
// that the Service lacks.
func TestNodeWord(t *testing.T) {
	var listed []string
	for i := range 200 {
		listed = append(listed, servedBy(i)...)
	}
	compile := func(listed ...string) lb.State {
		s, _ := config.Compile(nodeWordObjects(listed...), config.Options{Default: true})
		s.Members = map[string]bool{"w1": true, "w2": true, "w3": true}
		return s
	}
	honest, forged := compile(), compile(listed...)
	same := []cmp.Option{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}
	for _, node := range []string{"w1", "w2", "w3"} {
		want, got := plan.ForNode(node, honest), plan.ForNode(node, forged)
		if len(want.Filter.Frontends) != 400 || len(want.Routes) != 400 || len(want.Filter.Pings) != 400 {
			t.Fatalf("%s filters %d frontends, answers %d pings and advertises %d routes", node, len(want.Filter.Frontends), len(want.Filter.Pings), len(want.Routes))
		}
		if diff := cmp.Diff(want, got, same...); diff != "" {
			t.Errorf("the plan of %s changes: -before +after\n%.2000s", node, diff)
		}
	}
	if diff := cmp.Diff(plan.Frontends(honest), plan.Frontends(forged), same...); diff != "" {
		t.Errorf("what the controller says of filters changes: -before +after\n%.2000s", diff)
	}
	const most = 32 // of one Node: see config
	if avoided := forged.Pools[0].NodeAddresses; len(avoided) == 0 || len(avoided) > most || avoided[netip.MustParseAddr("192.0.2.1")] != "w3" {
		t.Errorf("%d addresses are kept from new Services, want %d at most", len(avoided), most)
	}
	// The links of the node itself are what counts there.
	own := honest
	own.Here.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	f := plan.ForNode("w1", own).Filter
	for _, a := range own.Here.Addresses {
		if slices.ContainsFunc(f.Frontends, func(d lb.Frontend) bool { return d.Address == a }) ||
			slices.ContainsFunc(f.Guarded, func(r lb.Range) bool { return r.Contains(a) }) {
			t.Errorf("%s is on a link of the node, and its filter closes it", a)
		}
	}
	if len(f.Frontends) != 398 {
		t.Errorf("%d frontends, want those of all other addresses", len(f.Frontends))
	}
}

// TestNodeAddress: a node's address is an InternalIP that is on its links, in whatever order its cloud controller lists its
// addresses; others dial it as the address of its speaker's pod.
func TestNodeAddress(t *testing.T) {
	links := func(prefixes ...string) []lb.Interface {
		l := lb.Interface{Name: "eth0"}
		for _, p := range prefixes {
			l.Prefixes = append(l.Prefixes, netip.MustParsePrefix(p))
		}
		return []lb.Interface{l}
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "w1"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.9"}, {Type: corev1.NodeExternalIP, Address: "2001:db8:9::9"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"},
	}
	s, _ := config.Compile(config.Objects{Nodes: []*corev1.Node{n}}, config.Options{})
	for _, tt := range []struct {
		name  string
		links []lb.Interface
		want  string
	}{
		{"behind address translation", links("10.0.0.1/24", "fd00::1/64"), "[10.0.0.1 fd00::1]"},
		{"with all addresses", links("203.0.113.9/24", "2001:db8:9::9/64", "10.0.0.1/24", "fd00::1/64"), "[10.0.0.1 fd00::1 203.0.113.9 2001:db8:9::9]"},
		{"with the external ones only", links("203.0.113.9/24"), "[203.0.113.9]"},
		{"with another's addresses", links("10.0.0.2/24"), "[]"},
	} {
		if got := fmt.Sprint(s.Nodes["w1"].Own(link.Addresses(tt.links))); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if got := plan.ForNode("w1", s).RouterID.String(); got != "10.0.0.1" {
		t.Errorf("the router ID is %s", got)
	}
}
