//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// standardFinalizer is Kubernetes' finalizer of Services with a load balancer.
const standardFinalizer = "service.kubernetes.io/load-balancer-cleanup"

// finalizers waits until a Service has both finalizers of a load balancer, or neither.
func (e *env) finalizers(t *testing.T, name string, want bool) {
	t.Helper()
	e.waitService(t, name, fmt.Sprintf("to have finalizers: %t", want), func(s *corev1.Service) error {
		for _, f := range []string{v1beta1.FinalizerAddress, standardFinalizer} {
			if slices.Contains(s.Finalizers, f) != want {
				return fmt.Errorf("they are %v", s.Finalizers)
			}
		}
		return nil
	})
}

// testFinalizers changes the type of a Service to each other type: nothing of Holdfast's stays on it, and its address can be assigned again.
func testFinalizers(t *testing.T, e *env) {
	e.pool(t, "e2e-final", `addresses: [10.150.3.0/29]`)
	ask := pool("e2e-final")
	// Lower addresses must be in use, or the next Service gets one of them.
	e.address(t, "final-lower", ask)
	held := e.address(t, "final", ask)
	e.finalizers(t, "final", true)
	e.remove(t, e.app.Namespace, "final-lower")
	for name, away := range map[string]string{
		"ClusterIP": toClusterIP,
		"NodePort":  `{"spec":{"type":"NodePort","allocateLoadBalancerNodePorts":null}}`,
		"ExternalName": `{"spec":{"type":"ExternalName","externalName":"example.com","externalTrafficPolicy":null,"internalTrafficPolicy":null,` +
			`"allocateLoadBalancerNodePorts":null,"clusterIP":null,"clusterIPs":null,"ipFamilies":null,"ipFamilyPolicy":null,"selector":null}}`,
	} {
		t.Run(name, func(t *testing.T) {
			e.patchService(t, "final", away)
			e.finalizers(t, "final", false)
			e.waitService(t, "final", "to be released", leftovers)
			e.waitPool(t, "e2e-final", "its release in the pool", func(p *v1beta1.IPAddressPool) error {
				if p.Status.AssignedIPv4 != 0 {
					return fmt.Errorf("%d are assigned", p.Status.AssignedIPv4)
				}
				return nil
			})
			e.patchService(t, "final", `{"spec":{"type":"LoadBalancer","externalName":null,"ipFamilyPolicy":"SingleStack","ipFamilies":["IPv4"]}}`)
			e.has(t, "final", held)
			e.finalizers(t, "final", true)
		})
	}
}

// leftovers reports conditions and annotations of Holdfast that remain on a Service.
func leftovers(s *corev1.Service) error {
	if got := testbed.Addresses(s); len(got) > 0 {
		return fmt.Errorf("it still has %v", got)
	}
	for _, kind := range []string{v1beta1.ConditionAddressAssigned, v1beta1.ConditionAnnouncedL2, v1beta1.ConditionAnnouncedBGP} {
		if c := meta.FindStatusCondition(s.Status.Conditions, kind); c != nil {
			return fmt.Errorf("condition %s is still there", kind)
		}
	}
	if v, there := s.Annotations[v1beta1.AnnotationAssigned]; there {
		return fmt.Errorf("annotation %s is still there: %s", v1beta1.AnnotationAssigned, v)
	}
	return nil
}

// testNoController deletes a Service, and changes the type of another, while no controller runs.
func testNoController(t *testing.T, e *env) {
	e.pool(t, "e2e-alone", `addresses: [10.150.3.16/29]`)
	e.address(t, "alone-deleted", pool("e2e-alone"))
	e.address(t, "alone-changed", pool("e2e-alone"))
	for _, name := range []string{"alone-deleted", "alone-changed"} {
		e.finalizers(t, name, true)
	}
	controllers, err := e.Kube.AppsV1().Deployments(testbed.Namespace).Get(t.Context(), testbed.Controller, metav1.GetOptions{})
	must(t, err)
	e.scaleController(t, 0)
	t.Cleanup(func() { e.scaleController(t, *controllers.Spec.Replicas) })

	must(t, e.Kube.CoreV1().Services(e.app.Namespace).Delete(t.Context(), "alone-deleted", metav1.DeleteOptions{}))
	e.patchService(t, "alone-changed", toClusterIP)
	for _, name := range []string{"alone-deleted", "alone-changed"} {
		e.finalizers(t, name, true)
	}
	e.scaleController(t, *controllers.Spec.Replicas)
	e.remove(t, e.app.Namespace, "alone-deleted")
	e.finalizers(t, "alone-changed", false)
	e.waitPool(t, "e2e-alone", "both addresses to be free", func(p *v1beta1.IPAddressPool) error {
		if p.Status.AssignedIPv4 != 0 || p.Status.AvailableIPv4 != 8 {
			return fmt.Errorf("assigned %d, available %d", p.Status.AssignedIPv4, p.Status.AvailableIPv4)
		}
		return nil
	})
	e.waitMemory(t, "e2e-alone", func(released []v1beta1.ReleasedAddress) error {
		if len(released) != 2 {
			return fmt.Errorf("released is %v", released)
		}
		return nil
	})
}

// scaleController sets the number of controllers, and waits until that many run.
func (e *env) scaleController(t *testing.T, replicas int32) {
	t.Helper()
	ctx := context.Background() // also used after t.Context() is cancelled
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
	_, err := e.Kube.AppsV1().Deployments(testbed.Namespace).Patch(ctx, testbed.Controller, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err == nil {
		err = testbed.Until(ctx, soon, fmt.Sprintf("%d controllers", replicas), func(ctx context.Context) error {
			pods, err := e.Pods(ctx, testbed.Controller)
			if err == nil && len(pods) != int(replicas) {
				err = fmt.Errorf("there are %d", len(pods))
			}
			return err
		})
	}
	if err == nil && replicas > 0 {
		err = e.WaitReady(ctx)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// waitPending waits until a condition gives the reason why a Service has no address.
func (e *env) waitPending(t *testing.T, s *corev1.Service) metav1.Condition {
	t.Helper()
	var got metav1.Condition
	must(t, testbed.Until(t.Context(), soon, "a reason why "+s.Name+" waits", func(ctx context.Context) (err error) {
		got, err = e.ServiceCondition(ctx, s.Namespace, s.Name, v1beta1.ConditionAddressAssigned)
		if err == nil && got.Status != metav1.ConditionFalse {
			err = fmt.Errorf("it is %s: %s", got.Reason, got.Message)
		}
		return err
	}))
	return got
}
