//go:build e2e

package e2e

import (
	"testing"
)

// testPending checks the output of kubectl describe in the five most common cases.
func testPending(t *testing.T, e *env) {
	e.pool(t, "e2e-one", `addresses: [10.150.5.0]`)
	e.pool(t, "e2e-class", `addresses: [10.150.5.8/29], classes: [e2e-silver-plate]`)
	e.pool(t, "e2e-more", `addresses: [10.150.5.16/29]`)
	e.address(t, "pending-full", pool("e2e-one"))
	share := all(pool("e2e-more"), annotation(sharingAnnotation, "k"))
	held := e.address(t, "pending-holder", share)
	ns := e.app.Namespace
	for name, tc := range map[string]struct {
		change       change
		reason, text string
	}{
		"exhausted": {pool("e2e-one"), "PoolExhausted", `pool "e2e-one" is full`},
		"class":     {openStack("class", "silver"), "UnknownClass", `asks for class "silver", which no pool has in spec.classes; known are: e2e-silver-plate`},
		"taken":     {annotation(addressesAnnotation, held.String()), "AddressInUse", held.String() + ", which Service " + ns + "/pending-holder holds"},
		"clash":     {all(share, annotation(addressesAnnotation, held.String())), "PortClash", "Service " + ns + "/pending-holder holds port TCP/80"},
		"unknown":   {pool("nowhere"), "UnknownPool", `asks for pool "nowhere", which does not exist`},
	} {
		t.Run(name, func(t *testing.T) {
			s := e.create(t, e.app, "pending-"+name, one(80), tc.change)
			e.refused(t, s.Name, tc.reason, tc.text)
		})
	}
	t.Run("no pool", func(t *testing.T) {
		e.patchPool(t, "lan", `{"spec":{"autoAssign":false}}`)
		s := e.create(t, e.app, "pending-none", one(80))
		e.refused(t, s.Name, "NoPool", `pool "lan" `)
		e.patchPool(t, "lan", `{"spec":{"autoAssign":true}}`)
		e.addressOf(t, s)
	})
}
