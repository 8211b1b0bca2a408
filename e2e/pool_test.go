//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// retained checks which addresses a pool's status reports as held though cut from the pool.
func retained(want ...netip.Addr) func(*v1beta1.IPAddressPool) error {
	return func(p *v1beta1.IPAddressPool) error {
		var got []string
		for _, r := range p.Status.Retained {
			got = append(got, r.Address)
		}
		var texts []string
		for _, a := range want {
			texts = append(texts, a.String())
		}
		if strings.Join(got, ",") != strings.Join(texts, ",") || p.Status.RetainedCount != int64(len(want)) {
			return fmt.Errorf("retained are %v (%d), want %v", got, p.Status.RetainedCount, texts)
		}
		return nil
	}
}

// testPoolEdits shrinks, grows and deletes a pool while a Service holds one of its addresses.
func testPoolEdits(t *testing.T, e *env) {
	const both, first, second = `{"spec":{"addresses":["172.30.0.200-172.30.0.203","172.30.0.208-172.30.0.211"]}}`,
		`{"spec":{"addresses":["172.30.0.200-172.30.0.203"]}}`, `{"spec":{"addresses":["172.30.0.208-172.30.0.211"]}}`
	e.pool(t, "e2e-edit", `addresses: [172.30.0.200-172.30.0.203, 172.30.0.208-172.30.0.211]`)
	e.apply(t, object("L2Advertisement", "e2e-edit", `{ipAddressPools: [e2e-edit]}`))
	held := e.address(t, "edit", pool("e2e-edit"))
	e.served(t, testbed.Client, []netip.Addr{held})

	t.Run("shrink", func(t *testing.T) {
		e.patchPool(t, "e2e-edit", second)
		e.waitPool(t, "e2e-edit", "the address to be retained", retained(held))
		e.has(t, "edit", held)
		e.served(t, testbed.Client, []netip.Addr{held})
		e.announced(t, e.app.Namespace, "edit")
	})
	t.Run("grow", func(t *testing.T) {
		e.patchPool(t, "e2e-edit", both)
		e.waitPool(t, "e2e-edit", "nothing to be retained", retained())
		e.has(t, "edit", held)
	})
	t.Run("renew", func(t *testing.T) {
		e.patchPool(t, "e2e-edit", second)
		e.waitPool(t, "e2e-edit", "the address to be retained", retained(held))
		e.patchService(t, "edit", `{"metadata":{"annotations":{"`+renewAnnotation+`":"true"}}}`)
		moved := netip.MustParseAddr("172.30.0.208")
		e.has(t, "edit", moved)
		e.waitPool(t, "e2e-edit", "nothing to be retained", retained())
		e.served(t, testbed.Client, []netip.Addr{moved})
		e.silent(t, []netip.Addr{held})
		held = moved
	})
	t.Run("delete", func(t *testing.T) {
		must(t, e.Resource(testbed.Pools).Delete(t.Context(), "e2e-edit", metav1.DeleteOptions{}))
		c := e.valid(t, testbed.Pools, "e2e-edit", metav1.ConditionFalse, "Deleting")
		e.describes(t, []string{c.Message, e.app.Namespace + "/edit"}, "ipaddresspool", "e2e-edit")
		e.has(t, "edit", held)
		late := e.create(t, e.app, "edit-late", one(80), pool("e2e-edit"))
		if c := e.waitPending(t, late); !strings.Contains(c.Message, "e2e-edit") {
			t.Errorf("%s: %s does not name the pool", c.Reason, c.Message)
		}
		e.remove(t, e.app.Namespace, "edit")
		must(t, gone(t.Context(), "the pool", func(ctx context.Context) (*unstructured.Unstructured, error) {
			return e.Resource(testbed.Pools).Get(ctx, "e2e-edit", metav1.GetOptions{})
		}))
	})
}

// testPoolMemory checks quotas, and what a pool remembers of released addresses with their last holders.
func testPoolMemory(t *testing.T, e *env) {
	t.Run("quota", func(t *testing.T) {
		e.pool(t, "e2e-quota", `addresses: [10.150.4.0/28], quota: {perNamespace: {ipv4: 2}}`)
		e.address(t, "quota-1", pool("e2e-quota"))
		e.floating(t, "quota", `{pool: e2e-quota}`)
		s := e.create(t, e.app, "quota-3", one(80), pool("e2e-quota"))
		e.refused(t, s.Name, "QuotaExceeded",
			`pool "e2e-quota" gives namespace "`+e.app.Namespace+`" no more than its quota of 2`)
		ns := e.namespace(t)
		e.addressOf(t, e.create(t, e.in(ns), "elsewhere", one(80), pool("e2e-quota")))
		e.remove(t, e.app.Namespace, "quota-1")
		e.addressOf(t, s)
	})
	t.Run("reuse delay", func(t *testing.T) {
		const delay = 6 * time.Second // longer than the counts in the status may be late
		e.pool(t, "e2e-reuse", `addresses: [10.150.4.32], reuseDelay: 6s`)
		held := e.address(t, "reuse-first", pool("e2e-reuse"))
		s, err := e.Kube.CoreV1().Services(e.app.Namespace).Get(t.Context(), "reuse-first", metav1.GetOptions{})
		must(t, err)
		next := e.create(t, e.app, "reuse-next", one(80), pool("e2e-reuse"))
		e.refused(t, next.Name, "PoolExhausted", "e2e-reuse")
		start := time.Now()
		e.remove(t, e.app.Namespace, "reuse-first")
		e.waitMemory(t, "e2e-reuse", func(r []v1beta1.ReleasedAddress) error {
			if len(r) != 1 || r[0].Address != held.String() || r[0].Service != e.app.Namespace+"/reuse-first" ||
				r[0].UID != string(s.UID) {
				return fmt.Errorf("released is %v", r)
			}
			return nil
		})
		e.waitPool(t, "e2e-reuse", "the quarantine to be counted", func(p *v1beta1.IPAddressPool) error {
			if p.Status.QuarantinedIPv4 != 1 {
				return fmt.Errorf("%d quarantined", p.Status.QuarantinedIPv4)
			}
			return nil
		})
		e.refused(t, next.Name, "Quarantined", "e2e-reuse")
		e.has(t, next.Name, held)
		// Times in the status are in whole seconds.
		if took := time.Since(start); took < delay-time.Second || took > delay+2*time.Second {
			t.Errorf("it was reused %s after its release, want %s", took, delay)
		}
	})
}

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

// testFinalizers changes the type of a Service to each other type: nothing of Holdfast's stays on it, and its address
// can be assigned again.
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
			e.patchService(t, "final",
				`{"spec":{"type":"LoadBalancer","externalName":null,"ipFamilyPolicy":"SingleStack","ipFamilies":["IPv4"]}}`)
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
	for _, kind := range []string{
		v1beta1.ConditionAddressAssigned, v1beta1.ConditionAnnouncedL2, v1beta1.ConditionAnnouncedBGP,
	} {
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
	controllers, err := e.Kube.AppsV1().Deployments(testbed.Namespace).Get(t.Context(), testbed.Controller,
		metav1.GetOptions{})
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
	_, err := e.Kube.AppsV1().Deployments(testbed.Namespace).Patch(ctx, testbed.Controller, types.MergePatchType,
		[]byte(patch), metav1.PatchOptions{})
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
