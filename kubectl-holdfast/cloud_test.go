package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// TestOpenStack: each network, subnet and class in use is a pool with the addresses in use, and an address of its own is a FloatingIP.
func TestOpenStack(t *testing.T) {
	cloud := Cloud{LoadBalancerClass: map[string]*CloudSection{
		"dmz":    {FloatingSubnet: "dmz-*", FloatingSubnetTags: "&fast, cheap"},
		"Office": {FloatingNetworkID: "net-2", FloatingSubnet: "office", FloatingSubnetTags: "!slow,bad"},
	}}
	cloud.LoadBalancer = CloudSection{FloatingNetworkID: "net-1", FloatingSubnetID: "sub-1", NetworkID: "net-i", SubnetID: "sub-i", MaxSharedLB: 3,
		NodeSelector: "env=production, region=default"}
	in := func(namespace, name, address string, annotations ...string) *corev1.Service {
		o := served(namespace, name, "", address)
		o.Annotations = map[string]string{occm + "load-balancer-id": "lb-" + address}
		for _, a := range annotations {
			key, value, _ := strings.Cut(a, "=")
			o.Annotations[key] = value
		}
		return o
	}
	named := in("a", "named", "", occm+"hostname=www.example.com", occm+"load-balancer-address=192.0.2.9")
	named.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "www.example.com"}}
	second := in("b", "second", "192.0.2.2")
	second.Spec.Ports[0].Port = 81
	s := fresh(in("a", "plain", "192.0.2.1", occm+"lb-method=SOURCE_IP"), in("a", "first", "192.0.2.2"), second, named,
		in("a", "kept", "192.0.2.3", occm+"keep-floatingip=true", occm+"floating-subnet-id=sub-1"),
		in("a", "dmz", "192.0.2.17", occm+"class=dmz"),
		in("a", "inner", "10.0.9.1", "service.beta.kubernetes.io/openstack-internal-load-balancer=true"),
		in("a", "chosen", "198.51.100.1", occm+"floating-network-id=NET-3"))
	m := s.OpenStack(cloud, s.Objects.Services)
	var got []string
	for _, o := range m.Objects {
		text := rendered(t, o)
		got = append(got, strings.TrimPrefix(text, "apiVersion: holdfast.dev/v1beta1|kind: "))
	}
	fip := func(name, address, policy string) string {
		return "FloatingIP|metadata:|  name: " + name + "|  namespace: a|spec:|  addresses:|  - " + address + "|  reclaimPolicy: " + policy + "|  serviceName: " +
			name
	}
	want := []string{
		"IPAddressPool|metadata:|  name: dmz|spec:|  addresses:|  - 192.0.2.17|  aliases:|  - net-1|  classes:|  - dmz|  scope: External|  tags:|" +
			"  - fast|  - cheap",
		"IPAddressPool|metadata:|  name: net-3|spec:|  addresses:|  - 198.51.100.1|  aliases:|  - NET-3|  scope: External",
		"IPAddressPool|metadata:|  name: office|spec:|  addresses: null|  aliases:|  - net-2|  - office|  classes:|  - Office|  scope: External",
		"IPAddressPool|metadata:|  name: openstack|spec:|  addresses:|  - 192.0.2.2|  - 192.0.2.3|  - 192.0.2.9|  - 192.0.2.1|  aliases:|  - net-1|  - sub-1|" +
			"  scope: External",
		"IPAddressPool|metadata:|  name: openstack-internal|spec:|  addresses:|  - 10.0.9.1|  aliases:|  - net-i|  - sub-i|  scope: Internal",
		fip("chosen", "198.51.100.1", "Delete"), fip("dmz", "192.0.2.17", "Delete"), fip("kept", "192.0.2.3", "Retain"), fip("named", "192.0.2.9", "Delete"),
		fip("plain", "192.0.2.1", "Delete"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	steps := []string{
		`chart note install Holdfast with the values openStack: {maxShared: 3, internal: false, nodeSelector: "env=production, region=default"}`,
		"IPAddressPool office problem no Service has an address of it: write the ranges of its subnet, or leave it out",
		"pools note they hold the addresses in use: add the other ranges of their subnets, and the names and tags that patterns match",
		"Service a/plain note lb-method does nothing: kube-proxy chooses the pod",
	}
	if diff := cmp.Diff(steps, reported(m)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
