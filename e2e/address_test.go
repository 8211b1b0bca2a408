//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

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
	_, err := e.Kube.CoreV1().Services(e.app.Namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	must(t, err)
}

func (e *env) patchPool(t *testing.T, name, patch string) {
	t.Helper()
	_, err := e.Resource(testbed.Pools).Patch(t.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
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
	until(t, e.Resource(testbed.PoolMemories), name, "what the pool remembers", func(m *v1beta1.PoolMemory) error {
		return check(m.Status.Released)
	})
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
		if f.Status.Phase != phase || holder != service || len(f.Status.Addresses) != 1 ||
			!strings.Contains(record, ","+f.Status.Addresses[0]+"=") {
			return fmt.Errorf("it is %s, used by %q, has %v and the record %q", f.Status.Phase, holder, f.Status.Addresses,
				record)
		}
		return nil
	}
}

// floating creates a FloatingIP for the duration of the test and returns its address.
func (e *env) floating(t *testing.T, name, spec string) netip.Addr {
	t.Helper()
	e.apply(t, fmt.Sprintf(
		"apiVersion: holdfast.dev/v1beta1\nkind: FloatingIP\nmetadata: {name: %s, namespace: %s}\nspec: %s\n", name,
		e.app.Namespace, spec,
	))
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
	_, err := e.Kubectl(t.Context(), "delete", kind, name, "-n", e.app.Namespace, "--ignore-not-found",
		"--timeout="+soon.String())
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

// testSharing creates Services that may share an address, and Services that may not.
func testSharing(t *testing.T, e *env) {
	e.pool(t, "e2e-share", `addresses: [10.150.2.0/29]`)
	share := all(pool("e2e-share"), annotation(sharingAnnotation, "k"))
	first := e.address(t, "share-first", share)
	e.create(t, e.app, "share-second", one(81), share)
	e.has(t, "share-second", first)

	at := annotation(addressesAnnotation, first.String())
	t.Run("port clash", func(t *testing.T) {
		e.create(t, e.app, "share-clash", one(81), share, at)
		e.refused(t, "share-clash", "PortClash", e.app.Namespace+"/share-second holds port TCP/81")
		// Another port ends the clash.
		e.patchService(t, "share-clash", `{"spec":{"ports":[{"port":82,"protocol":"TCP"}]}}`)
		e.has(t, "share-clash", first)
	})
	t.Run("other namespace", func(t *testing.T) {
		ns := e.namespace(t)
		s := e.create(t, e.in(ns), "share-other", one(83), share, at)
		e.refusedIn(t, ns, s.Name, "NotShareable",
			"which a Service of another namespace holds: the pool's sharing.scope is Namespace")
		e.patchPool(t, "e2e-share", `{"spec":{"sharing":{"scope":"Cluster"}}}`)
		if got := e.addressOf(t, s); got != first {
			t.Errorf("share-other got %s, want %s", got, first)
		}
	})
	t.Run("internal and external", func(t *testing.T) {
		e.create(t, e.app, "share-internal", one(84), share, at, annotation("holdfast.dev/internal", "true"))
		e.refused(t, "share-internal", "NotShareable", "an internal Service and an external one never share")
	})
	t.Run("end", func(t *testing.T) { e.sharingEnds(t, "end-a", "end-b", "end-c") })
}

// sharingEnds creates Services and deletes them in the same order, that share the only address of a pool.
// The others keep the address; it is free once all three are deleted.
func (e *env) sharingEnds(t *testing.T, order ...string) {
	e.pool(t, "e2e-share-end", `addresses: [10.150.2.8]`)
	share := all(pool("e2e-share-end"), annotation(sharingAnnotation, "end"))
	made := map[string]*corev1.Service{}
	for i, name := range order {
		made[name] = e.create(t, e.app, name, one(int32(80+i)), share)
		e.addressOf(t, made[name])
	}
	address := e.addressOf(t, made[order[0]])
	stranger := e.create(t, e.app, "end-stranger", one(99), pool("e2e-share-end"))
	for i, name := range order {
		e.refused(t, stranger.Name, "PoolExhausted", `pool "e2e-share-end" is full`)
		e.remove(t, e.app.Namespace, name)
		for _, left := range order[i+1:] {
			e.has(t, left, address)
		}
	}
	e.has(t, stranger.Name, address)
	e.remove(t, stranger.Namespace, stranger.Name)
	e.delete(t, testbed.Pools, "e2e-share-end")
}

// testFloatingIP follows a FloatingIP from its creation to its deletion.
func testFloatingIP(t *testing.T, e *env) {
	e.pool(t, "e2e-fip", `addresses: [10.150.0.0/29]`)
	owned := e.floating(t, "mine", `{pool: e2e-fip}`)
	e.waitFloating(t, "mine", "it to be available", bound(""))
	claim := all(one(80), annotation(floatingIPAnnotation, "mine"))

	first := e.create(t, e.app, "fip-first", claim)
	e.has(t, first.Name, owned)
	f := e.waitFloating(t, "mine", "it to be bound", bound(first.Name))
	if f.Status.BoundTo.UID != string(first.UID) || f.Status.BoundSince == nil {
		t.Errorf("bound to %v since %v, want UID %s and a time", f.Status.BoundTo, f.Status.BoundSince, first.UID)
	}
	if len(f.Spec.Addresses) > 0 {
		t.Errorf("its spec, which the user wrote, was changed: %v", f.Spec)
	}
	t.Run("others may not", func(t *testing.T) {
		second := e.create(t, e.app, "fip-second", claim)
		e.refused(t, second.Name, "FloatingIPInUse", first.Name)
		ns := e.namespace(t)
		e.create(t, e.in(ns), "thief", claim)
		e.refusedIn(t, ns, "thief", "FloatingIPUnknown", `"mine"`, ns)
		e.create(t, e.in(ns), "by-address", one(81), annotation(addressesAnnotation, owned.String()))
		e.refusedIn(t, ns, "by-address", "AddressInUse", owned.String())
	})
	t.Run("deletion waits", func(t *testing.T) { e.deletionWaits(t, first.Name) })
	t.Run("retain", func(t *testing.T) {
		made := e.floating(t, "kept", `{pool: e2e-fip}`)
		s := e.create(t, e.app, "fip-kept", one(80), annotation(addressesAnnotation, made.String()))
		e.waitFloating(t, "kept", "it to be bound by its address", bound(s.Name))
		e.remove(t, s.Namespace, s.Name)
		f := e.waitFloating(t, "kept", "it to be available again", bound(""))
		h := f.Status.RecentHolders
		if len(h) != 1 || h[0].Name != s.Name || h[0].UID != string(s.UID) || h[0].Until == nil {
			t.Errorf("recent holders are %v, want %s only", h, s.Name)
		}
		e.restartController(t)
		if got := e.waitFloating(t, "kept", "it to be available", bound("")); got.ResourceVersion != f.ResourceVersion {
			t.Errorf("a restart of the controller wrote to it: %v", got)
		}
	})
	t.Run("delete with the Service", func(t *testing.T) {
		made := e.floating(t, "passing", `{pool: e2e-fip, reclaimPolicy: Delete}`)
		s := e.create(t, e.app, "fip-passing", one(80), annotation(floatingIPAnnotation, "passing"))
		e.has(t, s.Name, made)
		e.waitFloating(t, "passing", "it to be bound", bound(s.Name))
		e.remove(t, s.Namespace, s.Name)
		e.floatingGone(t, "passing")
	})
}

// deletionWaits deletes a FloatingIP while a Service uses it.
func (e *env) deletionWaits(t *testing.T, service string) {
	must(t, e.Resource(testbed.FloatingIPs).Namespace(e.app.Namespace).Delete(t.Context(), "mine", metav1.DeleteOptions{}))
	f := e.waitFloating(t, "mine", "the FloatingIP to report what it waits for", func(f *v1beta1.FloatingIP) error {
		if len(f.Status.Conditions) == 0 || f.Status.Conditions[0].Reason != "Deleting" {
			return fmt.Errorf("conditions are %v", f.Status.Conditions)
		}
		return nil
	})
	e.describes(t, []string{"Deleting", f.Status.Conditions[0].Message, service}, "floatingip", "-n", e.app.Namespace,
		"mine")
	e.has(t, service, netip.MustParseAddr(f.Status.Addresses[0]))
	e.remove(t, e.app.Namespace, service)
	e.floatingGone(t, "mine")
}

func (e *env) floatingGone(t *testing.T, name string) {
	t.Helper()
	must(t, gone(t.Context(), "FloatingIP "+name, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return e.Resource(testbed.FloatingIPs).Namespace(e.app.Namespace).Get(ctx, name, metav1.GetOptions{})
	}))
}

// restartController deletes the leading controller, and waits for the next leader.
func (e *env) restartController(t *testing.T) {
	t.Helper()
	e.killLeader(t)
	e.newLeader(t)
	must(t, e.WaitReady(t.Context()))
}

// testFloatingIPRestore deletes the pool, a FloatingIP and its Service, and
// restores them from a backup, which contains no status.
func testFloatingIPRestore(t *testing.T, e *env) {
	for name, order := range map[string][]int{"pool first": {0, 1, 2}, "Service first": {2, 1, 0}} {
		t.Run(name, func(t *testing.T) {
			e.pool(t, "e2e-restore", `addresses: [10.150.1.0/29]`)
			// This address is not the first free one, so only a real restore gets it.
			lower := e.address(t, "restore-lower", pool("e2e-restore"))
			owned := e.floating(t, "restored", `{pool: e2e-restore}`)
			s := e.create(t, e.app, "restore", one(80), annotation(floatingIPAnnotation, "restored"))
			e.has(t, s.Name, owned)
			e.waitFloating(t, "restored", "it to be bound", bound(s.Name))
			e.remove(t, s.Namespace, "restore-lower")
			backup := []*unstructured.Unstructured{
				e.saved(t, testbed.Pools, "e2e-restore"), e.saved(t, testbed.FloatingIPs, "restored"),
				e.saved(t, "service", s.Name),
			}
			e.delete(t, "service", s.Name)
			e.delete(t, testbed.FloatingIPs, "restored")
			e.delete(t, testbed.Pools, "e2e-restore")
			for _, i := range order {
				must(t, e.ApplyObject(t.Context(), e.app.Namespace, backup[i]))
				e.settle(t)
			}
			e.has(t, s.Name, owned)
			e.waitFloating(t, "restored", "it to be bound again", bound(s.Name))
			if owned == lower {
				t.Errorf("both had %s", owned)
			}
			e.delete(t, "service", s.Name)
			e.delete(t, testbed.FloatingIPs, "restored")
			e.delete(t, testbed.Pools, "e2e-restore")
		})
	}
}

// settle waits until the controller has read all earlier writes: then it has assigned
// an address to a Service that is created last.
func (e *env) settle(t *testing.T) {
	t.Helper()
	name := fmt.Sprintf("settle-%d", time.Now().UnixNano())
	s := e.create(t, e.app, name, one(9), pool("lan"))
	e.addressOf(t, s)
	e.remove(t, s.Namespace, s.Name)
}

// deleteFloating deletes a FloatingIP that a Service's annotation created.
func (e *env) deleteFloating(t *testing.T, name string) {
	if err := unlessGone(e.Resource(testbed.FloatingIPs).Namespace(e.app.Namespace).Delete(context.Background(), name,
		metav1.DeleteOptions{})); err != nil {
		t.Error(err)
	}
}
