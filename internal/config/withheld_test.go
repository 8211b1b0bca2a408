package config

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// podNode is a Node with podCIDRs.
func podNode(name, address string, cidrs ...string) *corev1.Node {
	n := nodeObject(name, "a", address)
	n.Spec.PodCIDRs = cidrs
	return n
}

// services returns n Services of ours without an address, the oldest first.
func services(n int) (all []*corev1.Service) {
	for i := range n {
		all = append(all, serviceObject(fmt.Sprintf("s%02d", i), func(o *corev1.Service) {
			o.UID, o.CreationTimestamp = types.UID(o.Name), metav1.Unix(int64(i), 0)
			o.Spec.ClusterIP, o.Spec.ClusterIPs = fmt.Sprintf("10.96.9.%d", i), nil
		}))
	}
	return all
}

// plainService is a Service of type ClusterIP.
func plainService(name, clusterIP string, externalIPs ...string) *corev1.Service {
	return serviceObject(name, func(o *corev1.Service) {
		o.UID, o.Spec.Type = types.UID(name), corev1.ServiceTypeClusterIP
		o.Spec.ClusterIP, o.Spec.ClusterIPs, o.Spec.ExternalIPs = clusterIP, nil, externalIPs
	})
}

// given returns the addresses that the Services of the objects get.
func given(o Objects) (out []string) {
	s, _ := Compile(o, Options{Default: true})
	s.Now = time.Unix(1e9, 0)
	for _, a := range ipam.Assign(s).Assignments {
		for _, addr := range a.Addresses {
			out = append(out, addr.String())
		}
	}
	return out
}

func serviceCIDR(name string, cidrs ...string) ServiceCIDR {
	s := ServiceCIDR{Name: name}
	for _, c := range cidrs {
		s.CIDRs = append(s.CIDRs, netip.MustParsePrefix(c))
	}
	return s
}

// networks makes the speaker of w1 report a default gateway and subnets.
func networks(gateway string, subnets ...string) func(*Objects) {
	return func(o *Objects) {
		state := &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}
		state.Status.Gateways, state.Status.Subnets = []string{gateway}, subnets
		o.NetworkAddresses = NetworkAddresses([]*v1beta1.SpeakerState{state})
	}
}

// TestClusterAddresses: a pool assigns none of the addresses that the cluster uses itself. Its condition Valid names
// the addresses and their owners.
func TestClusterAddresses(t *testing.T) {
	const holds = "note IPAddressPool p AddressNotUsable: " +
		"spec.addresses holds what belongs to the cluster, which no Service gets: %s: take that out"
	for _, tt := range []struct {
		name      string
		addresses []string
		change    func(*Objects)
		given     []string
		problem   string
	}{
		{"a ServiceCIDR", []string{"10.96.0.0-10.97.0.1"}, func(o *Objects) {
			o.ServiceCIDRs = []ServiceCIDR{serviceCIDR("kubernetes", "10.96.0.0/16", "fd00:96::/112")}
		}, []string{"10.97.0.0", "10.97.0.1"}, `10.96.0.0-10.96.255.255 (ServiceCIDR "kubernetes")`},
		{"a ServiceCIDR of IPv6", []string{"fd00:96::/111"}, func(o *Objects) {
			o.ServiceCIDRs = []ServiceCIDR{serviceCIDR("kubernetes", "10.96.0.0/16", "fd00:96::/112")}
			for _, s := range o.Services {
				s.Spec.ClusterIP = "fd00:97::1"
			}
		}, []string{"fd00:96::1:0", "fd00:96::1:1"}, `fd00:96::-fd00:96::ffff (ServiceCIDR "kubernetes")`},
		{"ClusterIPs, where there are no ServiceCIDRs", []string{"10.96.0.1-10.96.0.4"}, func(o *Objects) {
			o.Services = append(o.Services, plainService("kubernetes", "10.96.0.1"), plainService("dns", "10.96.0.3"))
		}, []string{"10.96.0.2", "10.96.0.4"},
			`10.96.0.1 (Service "default/kubernetes", as its ClusterIP), 10.96.0.3 (Service "default/dns", as its ClusterIP)`},
		{"podCIDRs", []string{"10.244.1.254-10.244.3.1"}, func(o *Objects) {
			o.Nodes = []*corev1.Node{podNode("w1", "10.0.0.1", "10.244.1.0/24", "fd00:244:1::/64"),
				podNode("w2", "10.0.0.2", "10.244.2.0/24", "fd00:244:2::/64")}
		}, []string{"10.244.3.0", "10.244.3.1"},
			`10.244.1.254-10.244.1.255 (the pods of node "w1"), 10.244.2.0-10.244.2.255 (the pods of node "w2")`},
		{"podCIDRs of IPv6", []string{"fd00:244:2::/63"}, func(o *Objects) {
			o.Nodes = []*corev1.Node{podNode("w2", "10.0.0.2", "10.244.2.0/24", "fd00:244:2::/64")}
			for _, s := range o.Services {
				s.Spec.ClusterIP = "fd00:97::1"
			}
		}, []string{"fd00:244:2:1::", "fd00:244:2:1::1"},
			`fd00:244:2::-fd00:244:2:0:ffff:ffff:ffff:ffff (the pods of node "w2")`},
		{"a podCIDR in which a Service is served", []string{"10.244.1.0/30"}, func(o *Objects) {
			o.Nodes = []*corev1.Node{podNode("w1", "10.0.0.1", "10.244.1.0/24")}
			having("10.244.1.3")(o.Services[1])
		}, []string{"10.244.1.0", "10.244.1.3"}, ""},
		{"a podCIDR that one Node claims among others without", []string{"172.30.0.0/30"}, func(o *Objects) {
			o.Nodes = []*corev1.Node{podNode("w1", "10.0.0.1", "172.30.0.0/16"), podNode("w2", "10.0.0.2")}
		}, []string{"172.30.0.0", "172.30.0.1"}, ""},
		{"a Node", []string{"10.0.0.0/30"}, func(o *Objects) {
			o.Nodes = []*corev1.Node{podNode("w1", "10.0.0.1")}
		}, []string{"10.0.0.0", "10.0.0.2"}, `10.0.0.1 (node "w1")`},
		{"networks of nodes", []string{"192.0.2.0-192.0.2.1", "192.0.2.254-192.0.3.0"}, networks("192.0.2.1", "192.0.2.0/24"),
			[]string{"192.0.2.254", "192.0.3.0"}, `192.0.2.0 (subnet 192.0.2.0/24, as its network address), ` +
				`192.0.2.1 (node "w1", as its default gateway), 192.0.2.255 (subnet 192.0.2.0/24, as its broadcast address)`},
		{"networks of IPv6", []string{"2001:db8::/126"}, func(o *Objects) {
			networks("2001:db8::1", "2001:db8::/64")(o)
			for _, s := range o.Services {
				s.Spec.ClusterIP = "fd00:97::1"
			}
		}, []string{"2001:db8::2", "2001:db8::3"},
			`2001:db8:: (subnet 2001:db8::/64, as the address of all its routers), ` +
				`2001:db8::1 (node "w1", as its default gateway)`},
		{"networks of two hosts, and what cannot be read", []string{"192.0.2.0/31"},
			networks("router", "192.0.2.0/31", "192.0.2.0/32", "192.0.2.1/32", "192.0.2.0/33", "", "::ffff:192.0.2.0/96"),
			[]string{"192.0.2.0", "192.0.2.1"}, ""},
		{"what several claim", []string{"10.96.0.0/29"}, func(o *Objects) {
			o.Nodes = []*corev1.Node{podNode("w1", "10.96.0.1", "10.96.0.0/30")}
			o.ServiceCIDRs = []ServiceCIDR{serviceCIDR("b", "10.96.0.0/31"), serviceCIDR("a", "10.96.0.2/31")}
			o.Services = append(o.Services, plainService("kubernetes", "10.96.0.1"))
		}, []string{"10.96.0.4", "10.96.0.5"},
			`10.96.0.0 (ServiceCIDR "b"), 10.96.0.1 (node "w1"), 10.96.0.2-10.96.0.3 (ServiceCIDR "a")`},
	} {
		o := Objects{Pools: []*v1beta1.IPAddressPool{poolObject("p", 1, tt.addresses...)}, Services: services(2)}
		tt.change(&o)
		same(t, tt.name+": given", tt.given, given(o))
		_, problems := Compile(o, Options{Default: true})
		var want []string
		if tt.problem != "" {
			want = []string{fmt.Sprintf(holds, tt.problem)}
		}
		same(t, tt.name+": problems", want, problemTexts(problems))
	}
}

// TestClusterJoinsPool: a Service keeps its address, whatever claims it later, and the condition reports the conflict.
func TestClusterJoinsPool(t *testing.T) {
	for name, change := range map[string]func(*Objects){
		"a Node":        func(o *Objects) { o.Nodes = []*corev1.Node{podNode("w1", "10.96.0.0")} },
		"a ServiceCIDR": func(o *Objects) { o.ServiceCIDRs = []ServiceCIDR{serviceCIDR("more", "10.96.0.0/16")} },
		"a subnet":      networks("10.96.0.2", "10.96.0.0/24"),
		"a ClusterIP":   func(o *Objects) { o.Services = append(o.Services, plainService("other", "10.96.0.0")) },
	} {
		o := Objects{Pools: []*v1beta1.IPAddressPool{poolObject("p", 1, "10.96.0.0/30")}, Services: services(1)}
		having("10.96.0.0")(o.Services[0])
		change(&o)
		same(t, name, []string{"10.96.0.0"}, given(o))
		s, _ := Compile(o, Options{Default: true})
		s.Now = time.Unix(1e9, 0)
		r := ipam.Assign(s)
		i := slices.IndexFunc(s.Services, func(s *lb.Service) bool { return s.Key.Name == "s00" })
		if r.Assignments[i].Reason != lb.AddressKept {
			t.Errorf("%s: the Service says %s %q", name, r.Assignments[i].Reason, r.Assignments[i].Message)
		}
	}
}

// TestClaimsFollow: the Compiler reads the claims of Services again when the ranges of the pools change.
func TestClaimsFollow(t *testing.T) {
	var c Compiler
	other, ours := plainService("other", "10.96.0.1"), services(1)[0]
	wide, narrow := poolObject("p", 1, "10.96.0.1-10.96.0.2"), poolObject("p", 1, "10.96.0.2")
	for i, step := range []struct {
		pool     *v1beta1.IPAddressPool
		services []*corev1.Service
		withheld int
	}{
		{narrow, []*corev1.Service{other, ours}, 0},
		{wide, []*corev1.Service{other, ours}, 1},
		{narrow, []*corev1.Service{other, ours}, 0},
		{wide, []*corev1.Service{other, ours}, 1},
		{wide, []*corev1.Service{ours}, 0},
		{wide, []*corev1.Service{other}, 1},
	} {
		o := Objects{Pools: []*v1beta1.IPAddressPool{step.pool}, Services: step.services}
		s, problems := c.Compile(o, Options{Default: true})
		fresh, again := Compile(o, Options{Default: true})
		same(t, fmt.Sprint(i), fresh.Pools, s.Pools, addrs())
		same(t, fmt.Sprint(i), problemTexts(again), problemTexts(problems))
		if got := len(s.Pools[0].Withheld); got != step.withheld {
			t.Errorf("step %d: %d parts are withheld, want %d", i, got, step.withheld)
		}
	}
}
