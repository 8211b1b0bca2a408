//go:build e2e && soak

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	returnRounds = 10
	// ownedTries is how many Services are made until one is owned by a node.
	ownedTries = 20
	// returnHold is how long clients are watched after all has returned.
	returnHold = 5 * time.Second
)

// TestSoakReturns powers nodes on again that owned addresses and had endpoints. No client may lose a connection
// meanwhile: neither to a node that takes its addresses back, nor to an endpoint that does not run yet.
func TestSoakReturns(t *testing.T) {
	e := setUp(t, providers["lab"], lab.ProxyNFTables)
	app := e.app
	app.Name = "returns"
	app.Replicas, app.Nodes = int32(len(e.workers())), e.workers()
	must(t, e.Deploy(t.Context(), app))
	bgp := e.service(t, app, "returns-bgp", routed)
	e.served(t, testbed.Far, bgp)
	endpoints := func(ctx context.Context) error { return e.endpointsOnAll(ctx, app.Namespace, "returns-bgp") }

	var lost int
	for i := range returnRounds {
		must(t, e.Calm(t.Context()))
		must(t, testbed.Until(t.Context(), time.Minute, "endpoints on all workers", endpoints))
		// In turn: the kubelet waits longer each time before it starts containers that end again and again.
		owner := e.workers()[i%len(e.workers())]
		l2 := e.ownedBy(t, app, owner, fmt.Sprintf("returns-%d", i+1))

		off := time.Now()
		must(t, e.Cluster.PowerOff(t.Context(), owner))
		t.Cleanup(func() { e.ensureOn(t, owner) })
		streams := append(e.watch(t, testbed.Client, l2), e.watch(t, testbed.Far, bgp)...)
		recovered(t, streams)
		finish(t, streams, fmt.Sprintf("soak: loss %d", i+1))

		streams = append(e.watch(t, testbed.Client, l2), e.watch(t, testbed.Far, bgp)...)
		on := time.Now()
		must(t, e.Cluster.PowerOn(t.Context(), owner))
		must(t, e.WaitNode(t.Context(), owner, on))
		t.Logf("off at %s, on at %s, Ready after %s", off.Format(time.TimeOnly), on.Format(time.TimeOnly), since(on))
		must(t, e.WaitReady(t.Context()))
		must(t, e.Calm(t.Context()))
		e.owned(t, l2, func(node string) bool { return node == owner })
		t.Logf("the node owns its addresses again after %s", since(on))
		must(t, testbed.Until(t.Context(), time.Minute, "endpoints on all workers", endpoints))
		t.Logf("its endpoints are back after %s", since(on))
		must(t, testbed.Holds(t.Context(), returnHold, func(context.Context) error { return nil }))
		lost += finish(t, streams, fmt.Sprintf("soak: return %d", i+1))
	}
	if lost > 0 {
		t.Errorf("%d connections were lost while nodes returned", lost)
	}
}

// ownedBy makes Services until a node owns the addresses of one, and returns these.
func (e *env) ownedBy(t *testing.T, app testbed.App, node, name string) []netip.Addr {
	t.Helper()
	for i := range ownedTries {
		addresses := e.service(t, app, fmt.Sprintf("%s-%d", name, i))
		e.served(t, testbed.Client, addresses)
		owner, err := e.WaitOwner(t.Context(), testbed.Client, addresses[0])
		must(t, err)
		if owner == node {
			return addresses
		}
	}
	t.Fatalf("%s owns the addresses of none of %d Services", node, ownedTries)
	return nil
}

// endpointsOnAll returns an error unless each worker has an endpoint of a Service that is ready, in each family.
func (e *env) endpointsOnAll(ctx context.Context, namespace, service string) error {
	slices, err := e.Kube.DiscoveryV1().EndpointSlices(namespace).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return err
	}

	ready := map[discoveryv1.AddressType]int{}
	for _, s := range slices.Items {
		for _, endpoint := range s.Endpoints {
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				ready[s.AddressType]++
			}
		}
	}
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		if ready[family] != len(e.workers()) {
			return fmt.Errorf("%d endpoints of %s are ready", ready[family], family)
		}
	}
	return nil
}
