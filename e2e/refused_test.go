//go:build e2e

package e2e

import (
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// refused checks that a Service has no address, and that its conditions and Events give the reason.
func (e *env) refused(t *testing.T, name, reason, text string) {
	t.Helper()
	e.refusedIn(t, e.app.Namespace, name, reason, text)
}

func (e *env) refusedIn(t *testing.T, ns, name, reason string, texts ...string) {
	t.Helper()
	c := e.waitCondition(t, ns, name, v1beta1.ConditionAddressAssigned, metav1.ConditionFalse, reason)
	e.describes(t, append(texts, reason, c.Message), "service", "-n", ns, name)
}

// testRefused creates Services whose requests cannot be met.
func testRefused(t *testing.T, e *env) {
	e.apply(t, `
apiVersion: holdfast.dev/v1beta1
kind: IPAddressPool
metadata: {name: e2e-only4}
spec: {addresses: [192.0.2.16/28], autoAssign: false}
---
apiVersion: holdfast.dev/v1beta1
kind: IPAddressPool
metadata: {name: e2e-elsewhere}
spec: {addresses: [192.0.2.32/28], autoAssign: false, serviceAllocation: {namespaces: [elsewhere]}}
`)
	held := e.service(t, e.app, "refused-holder")
	const addresses = "holdfast.dev/addresses"
	for name, tc := range map[string]struct {
		change       change
		reason, text string
	}{
		"unknown-pool":     {pool("nowhere"), "UnknownPool", "nowhere"},
		"no-family":        {pool("e2e-only4"), "NoFamily", "e2e-only4"},
		"not-allowed":      {pool("e2e-elsewhere"), "PoolNotAllowed", "e2e-elsewhere"},
		"in-use":           {annotation(addresses, held[0].String()), "AddressInUse", "refused-holder"},
		"not-in-pool":      {annotation(addresses, "203.0.113.5"), "AddressNotInPool", "203.0.113.5"},
		"unreadable":       {annotation(addresses, "banana"), "InvalidRequest", "banana"},
		"two-of-one-kind":  {annotation(addresses, "172.30.0.129,172.30.0.130"), "InvalidRequest", "172.30.0.130"},
		"other-pool-asked": {func(s *corev1.Service) { routed(s); annotation(addresses, "172.30.0.189")(s) }, "AddressNotInPool", "172.30.0.189"},
	} {
		t.Run(name, func(t *testing.T) {
			s := e.create(t, e.app, "refused-"+name, tc.change)
			e.refused(t, s.Name, tc.reason, tc.text)
		})
	}
	// Other Services are not affected.
	e.served(t, testbed.Client, held)
}

// testNoPool switches autoAssign off in the only pool that has it on.
func testNoPool(t *testing.T, e *env) {
	auto := func(on string) {
		_, err := e.Resource(testbed.Pools).Patch(t.Context(), "lan", types.MergePatchType, []byte(`{"spec":{"autoAssign":`+on+`}}`), metav1.PatchOptions{})
		must(t, err)
	}
	kept := e.service(t, e.app, "nopool-kept")
	auto("false")
	s := e.create(t, e.app, "nopool-refused")
	e.refused(t, s.Name, "NoPool", "pool")
	e.served(t, testbed.Client, kept)
	auto("true")
	_, err := e.WaitAddresses(t.Context(), s.Namespace, s.Name, 2)
	must(t, err)
}

// testPoolExhausted requests more addresses than a pool has.
func testPoolExhausted(t *testing.T, e *env) {
	e.apply(t, `
apiVersion: holdfast.dev/v1beta1
kind: IPAddressPool
metadata: {name: e2e-tiny}
spec: {addresses: [192.0.2.48, "2001:db8::48"], autoAssign: false}
`)
	e.valid(t, testbed.Pools, "e2e-tiny", metav1.ConditionTrue, "Valid")
	first := e.service(t, e.app, "exhausted-first", pool("e2e-tiny"))
	second := e.create(t, e.app, "exhausted-second", pool("e2e-tiny"))
	e.refused(t, second.Name, "PoolExhausted", "e2e-tiny")
	e.remove(t, e.app.Namespace, "exhausted-first")
	got, err := e.WaitAddresses(t.Context(), second.Namespace, second.Name, 2)
	must(t, err)
	if got[0] != first[0] || got[1] != first[1] {
		t.Errorf("the second Service got %v, want %v, which the first released", got, first)
	}
	e.remove(t, e.app.Namespace, second.Name)
}
