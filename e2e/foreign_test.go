//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	toClusterIP  = `{"spec":{"type":"ClusterIP","externalTrafficPolicy":null,"allocateLoadBalancerNodePorts":null}}`
	toOtherClass = `{"spec":{"type":"LoadBalancer","loadBalancerClass":"example.com/other"}}`
)

// testForeign takes Services from Holdfast and gives them back: by the class while a controller runs and while none
// does, and by defaultLoadBalancer.
func testForeign(t *testing.T, e *env) {
	e.pool(t, "e2e-foreign", `addresses: [10.150.3.24/29]`)
	ask := pool("e2e-foreign")
	t.Run("class", func(t *testing.T) {
		held := e.address(t, "foreign-class", ask)
		e.patchService(t, "foreign-class", toClusterIP)
		e.patchService(t, "foreign-class", toOtherClass)
		e.handedOver(t, "foreign-class")
		e.patchService(t, "foreign-class", toClusterIP)
		e.patchService(t, "foreign-class", `{"spec":{"type":"LoadBalancer","loadBalancerClass":"holdfast.dev/lb"}}`)
		e.has(t, "foreign-class", held)
		e.finalizers(t, "foreign-class", true)
	})
	t.Run("class without a controller", func(t *testing.T) { e.foreignUnseen(t, ask) })
	t.Run("default", func(t *testing.T) {
		held := e.address(t, "foreign-default", ask)
		e.address(t, "foreign-deleted", ask)
		undo(t, func(ctx context.Context) error { return e.Install(ctx) })
		must(t, e.Install(t.Context(), "--set", "defaultLoadBalancer=false"))
		e.handedOver(t, "foreign-default")
		e.handedOver(t, "foreign-deleted")
		e.waitCondition(t, e.app.Namespace, "foreign-default", v1beta1.ConditionAddressAssigned, metav1.ConditionFalse, "Released")
		e.remove(t, e.app.Namespace, "foreign-deleted") // no other load balancer serves it
		must(t, e.Install(t.Context()))
		e.has(t, "foreign-default", held)
		e.finalizers(t, "foreign-default", true)
	})
}

// foreignUnseen gives a Service to another load balancer while no controller runs.
func (e *env) foreignUnseen(t *testing.T, ask change) {
	const name, theirs = "foreign-unseen", "198.51.100.77"
	e.address(t, name, ask)
	controllers, err := e.Kube.AppsV1().Deployments(testbed.Namespace).Get(t.Context(), testbed.Controller, metav1.GetOptions{})
	must(t, err)
	e.scaleController(t, 0)
	t.Cleanup(func() { e.scaleController(t, *controllers.Spec.Replicas) })
	e.patchService(t, name, toClusterIP)
	e.patchService(t, name, toOtherClass)
	s, err := e.Kube.CoreV1().Services(e.app.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	e.setIngress(t, s, []corev1.LoadBalancerIngress{{IP: theirs}})
	e.finalizers(t, name, true)
	e.scaleController(t, *controllers.Spec.Replicas)
	e.handedOver(t, name, theirs)
	e.waitMemory(t, "e2e-foreign", func(released []v1beta1.ReleasedAddress) error {
		if !slices.ContainsFunc(released, func(r v1beta1.ReleasedAddress) bool { return r.Service == e.app.Namespace+"/"+name }) {
			return fmt.Errorf("it remembers %v", released)
		}
		return nil
	})
	// As the other load balancer does when it has cleaned up.
	e.patchService(t, name, `{"metadata":{"finalizers":null}}`)
	e.remove(t, e.app.Namespace, name)
}

// handedOver waits until a Service has nothing of ours but the standard finalizer, which another load balancer may need,
// and shows these addresses only.
func (e *env) handedOver(t *testing.T, name string, shows ...string) {
	t.Helper()
	e.waitService(t, name, "to be handed over", func(s *corev1.Service) error {
		var shown []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			shown = append(shown, in.IP)
		}
		if diff := cmp.Diff(shows, shown, cmpopts.EquateEmpty()); diff != "" {
			return fmt.Errorf("status: -want +got\n%s", diff)
		}
		// Kubernetes' own stays, unless the controller saw the moment in which the Service was of no load balancer.
		finalizers := slices.DeleteFunc(slices.Clone(s.Finalizers), func(f string) bool { return f == standardFinalizer })
		if v, found := s.Annotations[v1beta1.AnnotationAssigned]; found || len(finalizers) > 0 {
			return fmt.Errorf("finalizers are %v, %s is %q", s.Finalizers, v1beta1.AnnotationAssigned, v)
		}
		return nil
	})
}
