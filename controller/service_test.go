package main

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func service(kind corev1.ServiceType, assigned string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.ServiceSpec{Type: kind}}
	if assigned != "" {
		s.Annotations = map[string]string{v1beta1.AnnotationAssigned: assigned}
	}
	return s
}

func TestUpdate(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, tt := range []struct {
		name       string
		service    *corev1.Service
		assignment *ipam.Assignment
		status     metav1.ConditionStatus
		annotation string
	}{
		{"assigned", service(corev1.ServiceTypeLoadBalancer, ""),
			&ipam.Assignment{Addresses: []netip.Addr{v4, v6}, Pools: []string{"lan", "lan6"}, Reason: lb.Assigned},
			metav1.ConditionTrue, "192.0.2.1=lan,2001:db8::1=lan6"},
		{"cut from its pool: where it came from stays", service(corev1.ServiceTypeLoadBalancer, "192.0.2.1=lan,2001:db8::1=lan6"),
			&ipam.Assignment{Addresses: []netip.Addr{v4, v6}, Pools: []string{"", "other"}, Reason: lb.Assigned},
			metav1.ConditionTrue, "192.0.2.1=lan,2001:db8::1=other"},
		{"given by another load balancer", service(corev1.ServiceTypeLoadBalancer, ""),
			&ipam.Assignment{Addresses: []netip.Addr{v4}, Pools: []string{""}, Reason: lb.Assigned},
			metav1.ConditionTrue, ""},
		{"pending", service(corev1.ServiceTypeLoadBalancer, ""), &ipam.Assignment{Reason: lb.PoolExhausted}, metav1.ConditionFalse, ""},
		{"keeps what it has", service(corev1.ServiceTypeLoadBalancer, ""),
			&ipam.Assignment{Addresses: []netip.Addr{v4}, Pools: []string{"lan"}, Reason: lb.AddressKept},
			metav1.ConditionTrue, "192.0.2.1=lan"},
	} {
		update, condition := serviceWrite{tt.service, tt.assignment}.update()
		if condition.Status != tt.status || condition.Type != v1beta1.ConditionAddressAssigned {
			t.Errorf("%s: condition %v", tt.name, condition)
		}
		if got := update.Annotations[v1beta1.AnnotationAssigned]; got != tt.annotation || !update.SetAddresses {
			t.Errorf("%s: annotation %q, want %q", tt.name, got, tt.annotation)
		}
	}
}

func TestReleased(t *testing.T) {
	for _, tt := range []struct {
		name    string
		service *corev1.Service
		want    bool
	}{
		{"never ours", service(corev1.ServiceTypeClusterIP, ""), false},
		{"ours, and not a load balancer any more", service(corev1.ServiceTypeClusterIP, "192.0.2.1=lan"), true},
		{"of another class now", service(corev1.ServiceTypeLoadBalancer, "192.0.2.1=lan"), false},
	} {
		if got := released(tt.service); got != tt.want {
			t.Errorf("%s: released = %v", tt.name, got)
		}
	}
	update, condition := serviceWrite{service(corev1.ServiceTypeClusterIP, "192.0.2.1=lan"), nil}.update()
	want := k8s.ServiceUpdate{
		Service:          update.Service,
		RemoveConditions: ourConditions,
		Annotations:      map[string]string{v1beta1.AnnotationAssigned: ""},
	}
	if diff := cmp.Diff(want, update); diff != "" || condition.Reason != string(lb.Released) {
		t.Errorf("%s: update (-want +got):\n%s", condition.Reason, diff)
	}
}

func TestValid(t *testing.T) {
	pool := lb.Object{Kind: "IPAddressPool", Name: "lan"}
	fault := lb.Problem{Object: pool, Reason: lb.OverlappingAddresses, Message: "the elder has it"}
	note := lb.Problem{Object: pool, Reason: lb.HostBitsIgnored, Message: "read as a network", Note: true}
	other := lb.Problem{Object: lb.Object{Kind: "IPAddressPool", Name: "wan"}, Reason: lb.InvalidAddresses, Message: "no"}
	for _, tt := range []struct {
		name     string
		problems []lb.Problem
		want     metav1.Condition
	}{
		{"no problem", []lb.Problem{other}, metav1.Condition{Status: "True", Reason: "Valid", Message: "all of the object is in force"}},
		{"a note", []lb.Problem{note}, metav1.Condition{Status: "True", Reason: "HostBitsIgnored", Message: "read as a network"}},
		{"a fault", []lb.Problem{other, fault}, metav1.Condition{Status: "False", Reason: "OverlappingAddresses", Message: "the elder has it"}},
		{"a note before a fault", []lb.Problem{note, fault}, metav1.Condition{Status: "False", Reason: "OverlappingAddresses", Message: "read as a network; the elder has it"}},
		{"a fault before a note", []lb.Problem{fault, note}, metav1.Condition{Status: "False", Reason: "OverlappingAddresses", Message: "the elder has it; read as a network"}},
	} {
		tt.want.Type = v1beta1.ConditionValid
		if diff := cmp.Diff(tt.want, valid(pool, tt.problems)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
