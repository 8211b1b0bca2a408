package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// foreign returns a Service that had 192.0.2.1 of ours, and that another load balancer may serve.
func foreign(changes ...func(*corev1.Service)) *corev1.Service {
	sv := loadBalancer("web", "192.0.2.1")
	sv.Spec.LoadBalancerClass = new("example.com/other")
	sv.Finalizers = append(sv.Finalizers, k8s.StandardFinalizer)
	sv.Status.Conditions = []metav1.Condition{
		{Type: v1beta1.ConditionAddressAssigned, Status: metav1.ConditionTrue, Reason: string(lb.Assigned)},
		{Type: v1beta1.ConditionAnnouncedL2, Status: metav1.ConditionTrue, Reason: string(lb.Announced)},
		recorded(sv, "192.0.2.1", "lan"),
	}
	for _, change := range changes {
		change(sv)
	}
	return sv
}

func deleted(sv *corev1.Service) { sv.DeletionTimestamp = new(metav1.Now()) }

func shows(ips ...string) func(*corev1.Service) {
	return func(sv *corev1.Service) {
		sv.Status.LoadBalancer.Ingress = nil
		for _, ip := range ips {
			sv.Status.LoadBalancer.Ingress = append(sv.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

func marksOnly(finalizers ...string) func(*corev1.Service) {
	return func(sv *corev1.Service) { sv.Finalizers, sv.Status.Conditions = finalizers, nil }
}

// TestForeign: a Service that stopped being ours gives back what was ours and nothing else, so that it can be
// deleted. The standard finalizer stays for another load balancer, until nothing can need it.
func TestForeign(t *testing.T) {
	const other, standard = "198.51.100.1", k8s.StandardFinalizer
	for _, tt := range []struct {
		name       string
		service    *corev1.Service
		remembered bool
		finalizers []string
		shown      []string
		assigned   lb.Reason
	}{
		{"another class", foreign(), true, []string{standard}, nil, lb.Released},
		{
			"another load balancer serves it too",
			foreign(shows(other, "192.0.2.1")), true, []string{standard}, []string{other}, lb.Released,
		},
		{
			"it changed its type twice while no controller ran",
			foreign(shows(other)), true, []string{standard}, []string{other}, lb.Released,
		},
		{"it is being deleted", foreign(deleted), true, nil, nil, ""},
		{
			"it is being deleted, and another load balancer serves it",
			foreign(shows(other, "192.0.2.1"), deleted), true, []string{standard}, []string{other}, lb.Released,
		},
		{
			"another client removed the standard finalizer",
			foreign(func(sv *corev1.Service) { sv.Finalizers = sv.Finalizers[:1] }), true, nil, nil, "",
		},
		{
			"a copy of a Service of ours",
			foreign(shows(other), marksOnly(v1beta1.FinalizerAddress)), false, nil, []string{other}, "",
		},
		{
			"never ours",
			foreign(shows("192.0.2.1"), marksOnly(standard)), false, []string{standard}, []string{"192.0.2.1"}, "",
		},
		{"never ours, and being deleted", foreign(shows(), marksOnly(standard), deleted), false, []string{standard}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := newServer(t, lan(), tt.service)
			s := newTestSyncer(t, server)
			for range 3 {
				syncOnce(t, s)
			}
			got := server.service(t, "web")
			var shown []string
			for _, in := range got.Status.LoadBalancer.Ingress {
				shown = append(shown, in.IP)
			}
			if diff := cmp.Diff(tt.finalizers, got.Finalizers, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("finalizers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.shown, shown); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			var reason lb.Reason
			if c := meta.FindStatusCondition(got.Status.Conditions, v1beta1.ConditionAddressAssigned); c != nil {
				reason = lb.Reason(c.Reason)
			}
			if reason != tt.assigned || meta.FindStatusCondition(got.Status.Conditions, v1beta1.ConditionAnnouncedL2) != nil {
				t.Errorf("conditions are %v, want AddressAssigned %q", got.Status.Conditions, tt.assigned)
			}
			if got := server.remembered(t); len(got) > 0 != tt.remembered {
				t.Errorf("the pool remembers %v", got)
			}
		})
	}
}

// TestForeignLater: the standard finalizer that we left goes with the Service if no other load balancer serves it, and
// a Service that becomes ours again is as before.
func TestForeignLater(t *testing.T) {
	sv := foreign()
	sv.Spec.LoadBalancerClass = nil
	server := newServer(t, lan(), sv)
	s := newTestSyncer(t, server)
	var got *corev1.Service
	run := func(serves bool) {
		t.Helper()
		s.options.Default, s.compiler = serves, config.Compiler{} // as another process with these options
		for range 3 {
			syncOnce(t, s)
		}
		got = server.service(t, "web")
	}
	run(false)
	if diff := cmp.Diff([]string{k8s.StandardFinalizer}, got.Finalizers); diff != "" {
		t.Errorf("not ours (-want +got):\n%s", diff)
	}
	const message = "the Service released 192.0.2.1, since Holdfast does not serve its class"
	c := meta.FindStatusCondition(got.Status.Conditions, v1beta1.ConditionAddressAssigned)
	if c == nil || c.Message != message {
		t.Errorf("the condition is %v, want the message %q", c, message)
	}
	server.landed()
	if run(false); len(server.landed()) > 0 {
		t.Error("a released Service was written again")
	}
	run(true)
	if len(got.Finalizers) != 2 || len(got.Status.LoadBalancer.Ingress) != 1 ||
		!meta.IsStatusConditionTrue(got.Status.Conditions, v1beta1.ConditionAddressAssigned) {
		t.Errorf("ours again: %v, %v", got.ObjectMeta, got.Status)
	}
	run(false)
	got.DeletionTimestamp = new(metav1.Now())
	server.put(t, got)
	must(t, s.cluster.Refresh(t.Context()))
	if run(false); len(got.Finalizers) > 0 {
		t.Errorf("is being deleted, and has finalizers %v", got.Finalizers)
	}
}

// TestOthersFinalizer: on a Service that is ours and holds nothing of ours, the standard finalizer stays unless we set
// it, or another load balancer that has set it would never clean up. When the Service is deleted, what we set goes.
func TestOthersFinalizer(t *testing.T) {
	const other, ours, standard = "198.51.100.1", v1beta1.FinalizerAddress, k8s.StandardFinalizer
	released := func(sv *corev1.Service) {
		sv.Status.Conditions = []metav1.Condition{{
			Type: v1beta1.ConditionAddressAssigned, Status: metav1.ConditionFalse, Reason: string(lb.Released),
		}}
	}
	for _, tt := range []struct {
		name       string
		changes    []func(*corev1.Service)
		reason     lb.Reason
		finalizers []string
		deleted    []string
	}{
		{"pending", []func(*corev1.Service){shows(), marksOnly(standard)}, lb.NoPool, []string{standard}, []string{standard}},
		{"pending, and had an address", []func(*corev1.Service){shows()}, lb.NoPool, nil, nil},
		{
			"pending, and was let go before",
			[]func(*corev1.Service){shows(), marksOnly(standard), released}, lb.NoPool, nil, nil,
		},
		{
			"another's address",
			[]func(*corev1.Service){shows(other), marksOnly(standard)}, lb.ForeignAddress, []string{standard},
			[]string{standard},
		},
		{
			"another's address over ours",
			[]func(*corev1.Service){shows(other)}, lb.ForeignAddress, []string{ours, standard}, nil,
		},
		{
			"another's address, and was let go before",
			[]func(*corev1.Service){shows(other), marksOnly(standard), released}, lb.ForeignAddress,
			[]string{ours, standard}, nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sv := foreign(append(tt.changes, func(sv *corev1.Service) { sv.Spec.LoadBalancerClass = nil })...)
			server := newServer(t, sv)
			s := newTestSyncer(t, server)
			var got *corev1.Service
			run := func(want []string) {
				t.Helper()
				for range 3 {
					refreshed(t, s)
				}
				got = server.service(t, "web")
				if diff := cmp.Diff(want, got.Finalizers, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("finalizers (-want +got):\n%s", diff)
				}
			}
			run(tt.finalizers)
			c := meta.FindStatusCondition(got.Status.Conditions, v1beta1.ConditionAddressAssigned)
			if c == nil || c.Reason != string(tt.reason) {
				t.Errorf("conditions are %v, want AddressAssigned %q", got.Status.Conditions, tt.reason)
			}
			deleted(got)
			server.put(t, got)
			run(tt.deleted)
		})
	}
}
