//go:build e2e

package e2e

import (
	"testing"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
)

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
		e.refusedIn(t, ns, s.Name, "NotShareable", "which a Service of another namespace holds: the pool's sharing.scope is Namespace")
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
