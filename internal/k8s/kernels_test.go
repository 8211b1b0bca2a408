package k8s

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestKernels: a kubelet may list as many addresses as it likes, and every speaker asks at once.
func TestKernels(t *testing.T) {
	n := &corev1.Node{}
	n.Name, n.Status.DaemonEndpoints.KubeletEndpoint.Port = "w1", 10250
	speakers := map[string]netip.Addr{"w1": netip.MustParseAddr("192.0.2.1"), "w2": netip.MustParseAddr("192.0.2.2")}
	add := func(kind corev1.NodeAddressType, address string) {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: kind, Address: address})
	}
	add(corev1.NodeExternalIP, "198.51.100.1")
	add(corev1.NodeInternalIP, "192.0.2.1")
	add(corev1.NodeInternalIP, "2001:db8::1")
	add(corev1.NodeHostName, "w1")
	got := kernels(speakers, []*corev1.Node{n}, 7946)
	want := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:7946"), netip.MustParseAddrPort("192.0.2.1:10250"), netip.MustParseAddrPort("[2001:db8::1]:10250")}
	if !slices.Equal(got["w1"], want) || len(got["w2"]) != 1 {
		t.Errorf("got %v", got)
	}
	for i := range 20_000 {
		add(corev1.NodeInternalIP, fmt.Sprintf("10.0.%d.%d", i/256, i%256))
	}
	if got := kernels(speakers, []*corev1.Node{n}, 7946); len(got["w1"]) > 8 {
		t.Errorf("a Node that lists 20,000 addresses is asked at %d", len(got["w1"]))
	}
}
