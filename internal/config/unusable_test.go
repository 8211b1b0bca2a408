package config

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
)

func TestUnusableAddresses(t *testing.T) {
	for _, tt := range []struct {
		name      string
		addresses []string
		want      string
		problems  []string
	}{
		{"a node's own", []string{"172.30.0.10-172.30.0.13"}, "[172.30.0.10-172.30.0.13] but 172.30.0.11 172.30.0.12",
			[]string{`IPAddressPool p AddressNotUsable: spec.addresses holds what is not given to Services: 172.30.0.11 (node "n1"), 172.30.0.12 (node "n2"): take that out`}},
		{"of both families", []string{"fd00:30::10/127"}, "[fd00:30::10-fd00:30::11] but fd00:30::11",
			[]string{`IPAddressPool p AddressNotUsable: spec.addresses holds what is not given to Services: fd00:30::11 (node "n1"): take that out`}},
		{"nothing else left", []string{"172.30.0.11"}, "[172.30.0.11] but 172.30.0.11",
			[]string{`IPAddressPool p AddressNotUsable: spec.addresses holds what is not given to Services: 172.30.0.11 (node "n1"): take that out`}},
		{"network and broadcast are given, as MetalLB does", []string{"192.0.2.0/30"}, "[192.0.2.0-192.0.2.3]", nil},
		{"never a host's", []string{"126.255.255.255-128.0.0.0", "169.254.0.0/15", "fe80::1", "223.255.255.255-224.0.0.3"}, "[126.255.255.255 128.0.0.0 169.255.0.0-169.255.255.255 223.255.255.255]",
			[]string{`IPAddressPool p AddressNotUsable: spec.addresses holds what is not given to Services: 127.0.0.0-127.255.255.255 (loopback), 169.254.0.0-169.254.255.255 (link-local), 224.0.0.0-224.0.0.3 (multicast), fe80::1 (link-local): take that out`}},
		{"at both ends of the families", []string{"0.0.0.0-0.0.0.1", "255.255.255.254-255.255.255.255", "::-::2", "ff00::/8"}, "[0.0.0.1 255.255.255.254 ::2]",
			[]string{`IPAddressPool p AddressNotUsable: spec.addresses holds what is not given to Services: 0.0.0.0 (unspecified), 255.255.255.255 (broadcast), :: (unspecified), ::1 (loopback), ff00::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff (multicast): take that out`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := Objects{
				Pools: []*v1beta1.IPAddressPool{poolObject("p", 1, tt.addresses...)},
				// Two nodes with the same address, and one with a link-local address, are handled.
				Nodes: []*corev1.Node{nodeObject("n1", "a", "172.30.0.11", "fd00:30::11", "fe80::11"), nodeObject("n2", "a", "172.30.0.12", "172.30.0.11"), nodeObject("n3", "a")},
			}
			s, problems := Compile(o, Options{})
			got := rangesOf(s)["p"]
			for i, a := range slices.SortedFunc(maps.Keys(s.Pools[0].NodeAddresses), netip.Addr.Compare) {
				if i == 0 {
					got += " but"
				}
				got += " " + a.String()
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if diff := cmp.Diff(tt.problems, problemTexts(problems)); diff != "" {
				t.Errorf("problems: -want +got\n%s", diff)
			}
		})
	}
}

// TestNodeAddressOfYounger: an address that a Node lists is that of the pool that has it; the younger one lost it already.
func TestNodeAddressOfYounger(t *testing.T) {
	s, problems := Compile(Objects{
		Pools: []*v1beta1.IPAddressPool{poolObject("old", 1, "172.30.0.8/30"), poolObject("young", 2, "172.30.0.8/29")},
		Nodes: []*corev1.Node{nodeObject("n1", "a", "172.30.0.11", "172.30.0.13")},
	}, Options{})
	want := []string{
		`IPAddressPool old AddressNotUsable: spec.addresses holds what is not given to Services: 172.30.0.11 (node "n1"): take that out`,
		`IPAddressPool young AddressNotUsable: spec.addresses holds what is not given to Services: 172.30.0.13 (node "n1"): take that out`,
		`IPAddressPool young OverlappingAddresses: IPAddressPool "old" is older and keeps 172.30.0.8-172.30.0.11: take that out of one of the two pools`,
	}
	if diff := cmp.Diff(want, problemTexts(problems)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if len(s.Pools[0].NodeAddresses) != 1 || len(s.Pools[1].NodeAddresses) != 1 {
		t.Errorf("%v and %v are not kept from new Services", s.Pools[0].NodeAddresses, s.Pools[1].NodeAddresses)
	}
}

// TestManyNodeAddresses: a kubelet cannot bar a whole pool, nor make each plan long.
func TestManyNodeAddresses(t *testing.T) {
	n := nodeObject("n1", "a", "192.0.2.1")
	for i := range 20_000 {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: fmt.Sprintf("10.0.%d.%d", i/256, i%256)})
	}
	s, _ := Compile(Objects{Pools: []*v1beta1.IPAddressPool{poolObject("p", 1, "10.0.0.0/16")}, Nodes: []*corev1.Node{n}}, Options{})
	if got := s.Nodes["n1"].Addresses; len(got) != maxNodeAddresses || got[0] != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("%d addresses count, %v first", len(got), got[0])
	}
	if got := len(s.Pools[0].NodeAddresses); got != maxNodeAddresses-1 {
		t.Errorf("%d addresses are kept from all Services", got)
	}
}

// A Service keeps an unusable address that it already holds, and the pool stays recorded as its origin.
func TestUnusableAddressIsKept(t *testing.T) {
	svc := serviceObject("s", having("172.30.0.11"), recorded("172.30.0.11=p#digest"))
	o := Objects{
		Pools:    []*v1beta1.IPAddressPool{poolObject("p", 1, "172.30.0.8/29")},
		Nodes:    []*corev1.Node{nodeObject("n1", "a", "172.30.0.11")},
		Services: []*corev1.Service{svc},
	}
	s, _ := Compile(o, served())
	if got := s.Services[0]; len(got.Addresses) != 1 || got.Record.Of(got.Addresses[0]).Pool != "p" {
		t.Errorf("holds %v from %v", got.Addresses, got.Record)
	}
}
