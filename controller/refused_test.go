package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWriteRefused: a part that the API server refuses does not prevent other writes. The Service reports it once, for
// as long as it is refused.
func TestWriteRefused(t *testing.T) {
	for _, tt := range []struct {
		name    string
		invalid func(*corev1.Service) bool
		word    string
		// addressed, annotated and named say what is written all the same.
		addressed, annotated, named bool
	}{
		{"the host name", func(sv *corev1.Service) bool {
			return slices.ContainsFunc(sv.Status.LoadBalancer.Ingress,
				func(in corev1.LoadBalancerIngress) bool { return in.Hostname != "" })
		}, "the host name", true, true, false},
		{
			"an annotation",
			func(sv *corev1.Service) bool { return sv.Annotations[openstack.Address] != "" },
			"annotation " + openstack.Address, true, false, true,
		},
		{"a condition", func(sv *corev1.Service) bool {
			return meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionAnnotationsHonoured) != nil
		}, "condition holdfast.dev/AnnotationsHonoured", true, true, true},
		{
			"the address",
			func(sv *corev1.Service) bool { return len(sv.Status.LoadBalancer.Ingress) > 0 }, "the addresses", false,
			false, false,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sv := loadBalancer("web")
			metav1.SetMetaDataAnnotation(&sv.ObjectMeta, config.AnnotationHostname, "a.example.org")
			metav1.SetMetaDataAnnotation(&sv.ObjectMeta, "loadbalancer.openstack.org/port-id", "ignored")
			server := newServer(t, lan(), sv)
			server.invalid = tt.invalid
			s := newTestSyncer(t, server)
			syncOnce(t, s)
			got := server.service(t, "web")
			c := meta.FindStatusCondition(got.Status.Conditions, v1beta1.ConditionWritten)
			differs := c == nil || c.Status != metav1.ConditionFalse || c.Reason != string(lb.WriteRefused) ||
				!strings.Contains(c.Message, "refuses "+tt.word+":")
			if differs {
				t.Errorf("condition is %+v, want one about %s", c, tt.word)
			}
			ingress := got.Status.LoadBalancer.Ingress
			if addressed := len(ingress) == 1 && len(got.Finalizers) == 2; addressed != tt.addressed {
				t.Errorf("status has %v, with finalizers %v", ingress, got.Finalizers)
			}
			assigned := meta.IsStatusConditionTrue(got.Status.Conditions, v1beta1.ConditionAddressAssigned)
			if assigned != tt.addressed {
				t.Errorf("assigned: %v", got.Status.Conditions)
			}
			if annotated := got.Annotations[openstack.Address] != ""; annotated != tt.annotated {
				t.Errorf("annotations are %v", got.Annotations)
			}
			if named := len(ingress) == 1 && ingress[0].Hostname == "a.example.org"; named != tt.named {
				t.Errorf("ingress is %v", ingress)
			}
			for server.event(t).Reason != string(lb.WriteRefused) {
			}
			server.landed()
			if syncOnce(t, s); hasPatched(server.landed(), servicesPath+"/web") {
				t.Error("the same was written again")
			}
			server.edit(func() { server.invalid = nil })
			syncUntil(t, s, "nothing is refused any more", func() bool {
				got = server.service(t, "web")
				in := got.Status.LoadBalancer.Ingress
				return len(in) == 1 && in[0].Hostname == "a.example.org" && got.Annotations[openstack.Address] != "" &&
					meta.FindStatusCondition(got.Status.Conditions, v1beta1.ConditionWritten) == nil
			})
		})
	}
}
