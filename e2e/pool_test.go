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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
		e.refused(t, s.Name, "QuotaExceeded", `pool "e2e-quota" gives namespace "`+e.app.Namespace+`" no more than its quota of 2`)
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
			if len(r) != 1 || r[0].Address != held.String() || r[0].Service != e.app.Namespace+"/reuse-first" || r[0].UID != string(s.UID) {
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
