//go:build e2e

package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Annotations of Services that these tests use.
const (
	addressesAnnotation  = "holdfast.dev/addresses"
	sharingAnnotation    = "holdfast.dev/sharing-key"
	floatingIPAnnotation = "holdfast.dev/floating-ip"
	renewAnnotation      = "holdfast.dev/renew"
	openStackPrefix      = "loadbalancer.openstack.org/"
)

// one makes a Service IPv4 only, with one port.
func one(port int32) change {
	return func(s *corev1.Service) {
		s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		s.Spec.Ports = []corev1.ServicePort{{Port: port, TargetPort: intstr.FromInt32(8080)}}
	}
}

// all is several changes as one.
func all(changes ...change) change {
	return func(s *corev1.Service) {
		for _, c := range changes {
			c(s)
		}
	}
}

// in returns the application in another namespace, where no pods need to run.
func (e *env) in(namespace string) testbed.App {
	app := e.app
	app.Namespace = namespace
	return app
}

// pool creates a pool for a test. Only Services that request it get addresses from it.
func (e *env) pool(t *testing.T, name, spec string) {
	t.Helper()
	e.apply(t, object("IPAddressPool", name, `{autoAssign: false, `+spec+`}`))
	e.valid(t, testbed.Pools, name, metav1.ConditionTrue, "Valid")
}

// address creates a Service with one address and returns the address.
func (e *env) address(t *testing.T, name string, changes ...change) netip.Addr {
	t.Helper()
	s := e.create(t, e.app, name, append([]change{one(80)}, changes...)...)
	return e.addressOf(t, s)
}

func (e *env) addressOf(t *testing.T, s *corev1.Service) netip.Addr {
	t.Helper()
	got, err := e.WaitAddresses(t.Context(), s.Namespace, s.Name, 1)
	must(t, err)
	return got[0]
}

// has waits until a Service of the application has one address and no other.
func (e *env) has(t *testing.T, name string, want netip.Addr) {
	t.Helper()
	e.waitService(t, name, "to have "+want.String(), func(s *corev1.Service) error {
		if got := testbed.Addresses(s); len(got) != 1 || got[0] != want {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
}

func (e *env) patchService(t *testing.T, name, patch string) {
	t.Helper()
	_, err := e.Kube.CoreV1().Services(e.app.Namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

func (e *env) patchPool(t *testing.T, name, patch string) {
	t.Helper()
	_, err := e.Resource(testbed.Pools).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// waitPool waits until a pool passes a check.
func (e *env) waitPool(t *testing.T, name, what string, check func(*v1beta1.IPAddressPool) error) {
	t.Helper()
	until(t, e.Resource(testbed.Pools), name, what, check)
}

// waitMemory waits until what a pool remembers passes a check.
func (e *env) waitMemory(t *testing.T, name string, check func([]v1beta1.ReleasedAddress) error) {
	t.Helper()
	until(t, e.Resource(testbed.PoolMemories), name, "what the pool remembers", func(m *v1beta1.PoolMemory) error { return check(m.Status.Released) })
}

// waitFloating waits until a FloatingIP passes a check, and returns it.
func (e *env) waitFloating(t *testing.T, name, what string, check func(*v1beta1.FloatingIP) error) *v1beta1.FloatingIP {
	t.Helper()
	return until(t, e.Resource(testbed.FloatingIPs).Namespace(e.app.Namespace), name, what, check)
}

// bound checks which Service uses a FloatingIP; "" means none.
func bound(service string) func(*v1beta1.FloatingIP) error {
	return func(f *v1beta1.FloatingIP) error {
		phase, holder := v1beta1.FloatingIPAvailable, ""
		if service != "" {
			phase = v1beta1.FloatingIPBound
		}
		if f.Status.BoundTo != nil {
			holder = f.Status.BoundTo.Name
		}
		record := f.Annotations[v1beta1.AnnotationAssigned]
		if f.Status.Phase != phase || holder != service || len(f.Status.Addresses) != 1 || !strings.Contains(record, ","+f.Status.Addresses[0]+"=") {
			return fmt.Errorf("it is %s, used by %q, has %v and the record %q", f.Status.Phase, holder, f.Status.Addresses, record)
		}
		return nil
	}
}

// floating creates a FloatingIP for the duration of the test and returns its address.
func (e *env) floating(t *testing.T, name, spec string) netip.Addr {
	t.Helper()
	e.apply(t, fmt.Sprintf("apiVersion: holdfast.dev/v1beta1\nkind: FloatingIP\nmetadata: {name: %s, namespace: %s}\nspec: %s\n", name, e.app.Namespace, spec))
	f := e.waitFloating(t, name, "an address of FloatingIP "+name, func(f *v1beta1.FloatingIP) error {
		if len(f.Status.Addresses) != 1 {
			return fmt.Errorf("it is %s with %v", f.Status.Phase, f.Status.Addresses)
		}
		return nil
	})
	return netip.MustParseAddr(f.Status.Addresses[0])
}

// delete deletes an object and waits until it is gone.
func (e *env) delete(t *testing.T, kind, name string) {
	t.Helper()
	_, err := e.Kubectl(t.Context(), "delete", kind, name, "-n", e.app.Namespace, "--ignore-not-found", "--timeout="+soon.String())
	must(t, err)
}

// saved returns an object as a backup would contain it.
func (e *env) saved(t *testing.T, kind, name string) *unstructured.Unstructured {
	t.Helper()
	text, err := e.Kubectl(t.Context(), "get", kind, name, "-n", e.app.Namespace, "-o", "yaml")
	must(t, err)
	objects, err := testbed.Decode([]byte(text))
	must(t, err)
	o := objects[0]
	delete(o.Object, "status")
	for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	return o
}
