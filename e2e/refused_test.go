//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// refused checks that a Service has no address, that its conditions, its Events and the plugin give the reason, and that the
// plugin ends with what to do.
func (e *env) refused(t *testing.T, name, reason, text string, remedies ...string) {
	t.Helper()
	e.refusedIn(t, e.app.Namespace, name, reason, text)
	for _, remedy := range remedies {
		e.why(t, remedy, e.app.Namespace+"/"+name)
	}
}

func (e *env) refusedIn(t *testing.T, ns, name, reason string, texts ...string) {
	t.Helper()
	c := e.waitCondition(t, ns, name, v1beta1.ConditionAddressAssigned, metav1.ConditionFalse, reason)
	e.describes(t, append(texts, reason, c.Message), "service", "-n", ns, name)
	e.why(t, c.Message, ns+"/"+name)
}

// testRefused creates Services whose requests cannot be met: kubectl describe says why, and other Services are not affected.
func testRefused(t *testing.T, e *env) {
	e.pool(t, "e2e-only4", `addresses: [192.0.2.16/28]`)
	e.pool(t, "e2e-elsewhere", `addresses: [192.0.2.32/28], serviceAllocation: {namespaces: [elsewhere]}`)
	e.pool(t, "e2e-one", `addresses: [10.150.5.0]`)
	e.pool(t, "e2e-class", `addresses: [10.150.5.8/29], classes: [e2e-silver-plate]`)
	e.pool(t, "e2e-more", `addresses: [10.150.5.16/29]`)
	held := e.service(t, e.app, "refused-holder")
	full := e.address(t, "refused-full", pool("e2e-one"))
	share := all(pool("e2e-more"), annotation(sharingAnnotation, "k"), one(80))
	shared := annotation(addressesAnnotation, e.address(t, "refused-sharer", share).String())
	ns := e.app.Namespace
	for name, tc := range map[string]struct {
		change               change
		reason, text, remedy string
	}{
		"unknown-pool": {pool("nowhere"), "UnknownPool", `asks for pool "nowhere", which does not exist`, ""},
		"no-family":    {pool("e2e-only4"), "NoFamily", "e2e-only4", ""},
		"not-allowed":  {pool("e2e-elsewhere"), "PoolNotAllowed", "e2e-elsewhere", ""},
		"in-use": {annotation(addressesAnnotation, held[0].String()), "AddressInUse", held[0].String() + ", which Service " + ns + "/refused-holder holds",
			"ask for another address, or have the other Service give it up"},
		"not-in-pool":      {annotation(addressesAnnotation, "203.0.113.5"), "AddressNotInPool", "203.0.113.5", ""},
		"unreadable":       {annotation(addressesAnnotation, "banana"), "InvalidRequest", "banana", ""},
		"two-of-one-kind":  {annotation(addressesAnnotation, "172.30.0.129,172.30.0.130"), "InvalidRequest", "172.30.0.130", ""},
		"other-pool-asked": {all(routed, annotation(addressesAnnotation, "172.30.0.189")), "AddressNotInPool", "172.30.0.189", ""},
		"class": {openStack("class", "silver"), "UnknownClass",
			`asks for class "silver", which no pool has in spec.classes; known are: e2e-silver-plate`, ""},
		"clash": {all(share, shared), "PortClash", "Service " + ns + "/refused-sharer holds port TCP/80", "change the port or the sharing key"},
	} {
		t.Run(name, func(t *testing.T) {
			e.refused(t, e.create(t, e.app, "refused-"+name, tc.change).Name, tc.reason, tc.text, tc.remedy)
		})
	}
	t.Run("exhausted", func(t *testing.T) {
		s := e.create(t, e.app, "refused-exhausted", one(80), pool("e2e-one"))
		e.refused(t, s.Name, "PoolExhausted", `pool "e2e-one" is full`, "add addresses to the pool, or delete Services that need none")
		e.remove(t, ns, "refused-full")
		e.has(t, s.Name, full)
	})
	t.Run("no pool", func(t *testing.T) {
		undo(t, func(ctx context.Context) error { return e.autoAssign(ctx, true) })
		must(t, e.autoAssign(t.Context(), false))
		s := e.create(t, e.app, "refused-no-pool")
		e.refused(t, s.Name, "NoPool", `pool "lan" `, "autoAssign")
		e.served(t, testbed.Client, held)
		must(t, e.autoAssign(t.Context(), true))
		_, err := e.WaitAddresses(t.Context(), s.Namespace, s.Name, 2)
		must(t, err)
	})
}

// autoAssign changes the only pool whose addresses are given unasked.
func (e *env) autoAssign(ctx context.Context, on bool) error {
	_, err := e.Resource(testbed.Pools).Patch(ctx, "lan", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"autoAssign":%t}}`, on), metav1.PatchOptions{})
	return err
}
