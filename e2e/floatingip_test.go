//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

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
	e.describes(t, []string{"Deleting", f.Status.Conditions[0].Message, service}, "floatingip", "-n", e.app.Namespace, "mine")
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
			backup := []*unstructured.Unstructured{e.saved(t, testbed.Pools, "e2e-restore"), e.saved(t, testbed.FloatingIPs, "restored"), e.saved(t, "service", s.Name)}
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
	if err := unlessGone(e.Resource(testbed.FloatingIPs).Namespace(e.app.Namespace).Delete(context.Background(), name, metav1.DeleteOptions{})); err != nil {
		t.Error(err)
	}
}
