package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestUpdate(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	holding := map[string]bool{v1beta1.FinalizerAddress: true, k8s.StandardFinalizer: true}
	const openStackKeep = "loadbalancer.openstack.org/keep-floatingip"
	one := serviceWrite{assignment: &ipam.Assignment{Addresses: []netip.Addr{v4}, Record: lb.Origins{{Address: v4, Pool: "lan"}}, Reason: lb.Assigned}}
	for _, tt := range []struct {
		name        string
		write       serviceWrite
		has         map[string]string
		options     config.Options
		conditions  []string
		annotations map[string]string
		finalizers  map[string]bool
	}{
		{
			"assigned",
			serviceWrite{assignment: &ipam.Assignment{
				Addresses: []netip.Addr{v4, v6}, Record: lb.Origins{{Address: v4, Pool: "lan", Terms: "3x"}, {Address: v6, Pool: "lan6"}}, Reason: lb.Assigned,
			}},
			nil,
			config.Options{OpenStack: openstack.Options{Ignore: true}},
			[]string{"AddressAssigned True Assigned", "AddressRecord True Recorded"},
			map[string]string{v1beta1.AnnotationAssigned: "for=ns/web,192.0.2.1=lan,2001:db8::1=lan6", v1beta1.AnnotationHostnameShown: ""},
			holding,
		},
		{
			"pending, with an annotation that does nothing",
			serviceWrite{
				assignment: &ipam.Assignment{Reason: lb.PoolExhausted, Message: "full"},
				problems:   []lb.Problem{{Reason: lb.AnnotationIgnored, Message: "no proxy here", Note: true}},
			},
			map[string]string{openstack.ID: "uid", openStackKeep: "true"},
			config.Options{},
			[]string{"AddressAssigned False PoolExhausted", "AnnotationsHonoured False AnnotationIgnored"},
			map[string]string{v1beta1.AnnotationAssigned: "", v1beta1.AnnotationHostnameShown: "", openstack.Address: "", openstack.ID: ""},
			nil,
		},
		{
			"a request that cannot be read is reported once",
			serviceWrite{
				assignment: &ipam.Assignment{Reason: lb.InvalidRequest, Message: "not an address"},
				problems:   []lb.Problem{{Reason: lb.InvalidRequest, Message: "not an address", Waits: true}},
			},
			nil,
			config.Options{OpenStack: openstack.Options{Ignore: true}},
			[]string{"AddressAssigned False InvalidRequest"},
			map[string]string{v1beta1.AnnotationAssigned: "", v1beta1.AnnotationHostnameShown: ""},
			nil,
		},
		{
			"as OpenStack says it, with a host name",
			serviceWrite{
				hostname:   "a.example.org",
				assignment: &ipam.Assignment{Addresses: []netip.Addr{v4}, Record: lb.Origins{{Address: v4, Pool: "lan"}}, Reason: lb.AddressKept},
			},
			map[string]string{openStackKeep: "true"},
			config.Options{},
			[]string{"AddressAssigned True AddressKept", "AddressRecord True Recorded"},
			map[string]string{
				v1beta1.AnnotationAssigned: "for=ns/web,192.0.2.1=lan", v1beta1.AnnotationHostnameShown: "a.example.org",
				openstack.Address: "192.0.2.1", openstack.ID: "uid",
			},
			holding,
		},
		{
			"a copied manifest",
			one, map[string]string{v1beta1.AnnotationAssigned: "for=ns/original,192.0.2.9=lan", openstack.ID: "uid-original", openstack.Address: "192.0.2.9"},
			config.Options{},
			[]string{"AddressAssigned True Assigned", "AddressRecord True Recorded"},
			map[string]string{v1beta1.AnnotationAssigned: "for=ns/web,192.0.2.1=lan", v1beta1.AnnotationHostnameShown: "", openstack.Address: "", openstack.ID: ""},
			holding,
		},
		{
			"an address that another load balancer wrote",
			serviceWrite{assignment: &ipam.Assignment{Addresses: []netip.Addr{v4}, Pools: []string{""}, Reason: lb.ForeignAddress}},
			nil, config.Options{OpenStack: openstack.Options{Ignore: true}},
			[]string{"AddressAssigned False ForeignAddress"},
			map[string]string{v1beta1.AnnotationAssigned: "", v1beta1.AnnotationHostnameShown: ""},
			nil,
		},
	} {
		tt.write.service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid", Annotations: tt.has}}
		tt.write.assignment.Key = lb.Key{Namespace: "ns", Name: "web"}
		u := tt.write.update(tt.options)
		var got []string
		for _, c := range u.Conditions {
			got = append(got, strings.TrimPrefix(c.Type, "holdfast.dev/")+" "+string(c.Status)+" "+c.Reason)
		}
		if diff := cmp.Diff(tt.conditions, got); diff != "" {
			t.Errorf("%s: conditions (-want +got):\n%s", tt.name, diff)
		}
		if diff := cmp.Diff(tt.annotations, u.Annotations); diff != "" {
			t.Errorf("%s: annotations (-want +got):\n%s", tt.name, diff)
		}
		if diff := cmp.Diff(tt.finalizers, u.Finalizers); diff != "" || u.SetAddresses == (tt.write.assignment.Reason == lb.ForeignAddress) {
			t.Errorf("%s: finalizers (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestValid(t *testing.T) {
	pool := lb.Object{Kind: "IPAddressPool", Name: "lan"}
	fault := lb.Problem{Object: pool, Reason: lb.OverlappingAddresses, Message: "the older has it"}
	note := lb.Problem{Object: pool, Reason: lb.HostBitsIgnored, Message: "read as a network", Note: true}
	other := lb.Problem{Object: lb.Object{Kind: "IPAddressPool", Name: "wan"}, Reason: lb.InvalidAddresses, Message: "no"}
	for _, tt := range []struct {
		name     string
		problems []lb.Problem
		want     metav1.Condition
	}{
		{"no problem", []lb.Problem{other}, metav1.Condition{Status: "True", Reason: "Valid", Message: "all of the object is in force"}},
		{"a note", []lb.Problem{note}, metav1.Condition{Status: "True", Reason: "HostBitsIgnored", Message: "read as a network"}},
		{"a fault", []lb.Problem{other, fault}, metav1.Condition{Status: "False", Reason: "OverlappingAddresses", Message: "the older has it"}},
		{"a note before a fault", []lb.Problem{note, fault}, metav1.Condition{Status: "False", Reason: "OverlappingAddresses",
			Message: "read as a network; the older has it"}},
		{"a fault before a note", []lb.Problem{fault, note}, metav1.Condition{Status: "False", Reason: "OverlappingAddresses",
			Message: "the older has it; read as a network"}},
	} {
		tt.want.Type = v1beta1.ConditionValid
		if diff := cmp.Diff(tt.want, valid(pool, tt.problems)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
