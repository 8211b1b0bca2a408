package config

import (
	"fmt"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestReleasedIsNotOurs: a Service that gave its addresses back shows those of another load balancer, whatever its user writes into
// our annotation: otherwise the two would remove and write the address for ever.
func TestReleasedIsNotOurs(t *testing.T) {
	o := serviceObject("web", having("192.0.2.9"), annotated(v1beta1.AnnotationAssigned, "for=default/web,192.0.2.9=p"), func(o *corev1.Service) {
		o.Spec.LoadBalancerClass = new("example.org/other")
		o.Finalizers = []string{v1beta1.FinalizerAddress}
		o.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionAddressAssigned, Status: metav1.ConditionFalse, Reason: string(lb.Released)}}
	})
	if ours, others := served().Shown(o); len(ours) > 0 || len(others) != 1 {
		t.Errorf("ours are %v, others' %v", ours, others)
	}
}

// TestBackendIsBounded: a selector of pods beyond the bound is not compared, and equals that of no other Service.
func TestBackendIsBounded(t *testing.T) {
	selecting := func(name string, n int) string {
		return backend(serviceObject(name, func(o *corev1.Service) {
			o.UID, o.Spec.Selector = types.UID(name), map[string]string{}
			for i := range n {
				o.Spec.Selector[fmt.Sprintf("label-%d", i)] = "x"
			}
		}))
	}
	if selecting("a", maxSelectorTerms) != selecting("b", maxSelectorTerms) {
		t.Error("selectors at the bound differ")
	}
	a, b := selecting("a", maxSelectorTerms+1), selecting("b", maxSelectorTerms+1)
	if len(a) > 100 || a == b {
		t.Errorf("beyond the bound they are %.100q of %d bytes and %.100q", a, len(a), b)
	}
}
