//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// localHold is how long a node whose kube-proxy is frozen is watched.
const localHold = 3 * time.Second

// testLocalArrives starts a pod on a node whose kube-proxy is frozen, and which would drop what arrives for the Service: the
// node advertises no route before kube-proxy serves the pod, and no request fails.
func testLocalArrives(t *testing.T, e *env) {
	app := e.app
	app.Name, app.Replicas, app.Nodes = "arrives", 1, e.workers()[:1]
	must(t, e.Deploy(t.Context(), app))
	addresses := e.service(t, app, "arrives", routed, local)
	e.hops(t, addresses, 1)
	e.served(t, testbed.Far, addresses)
	node := e.workers()[1]
	// What kube-proxy does not know at all has a head start.
	e.proxies(t, node, addresses)
	signal := func(ctx context.Context, name string) error {
		_, err := e.On(ctx, node, "pkill", name, "-x", "kube-proxy")
		return err
	}
	must(t, signal(t.Context(), "-STOP"))
	undo(t, func(ctx context.Context) error { return signal(ctx, "-CONT") })
	streams, routes := e.watch(t, testbed.Far, addresses), e.watchRoutes(t)
	app.Replicas, app.Nodes = 2, e.workers()[:2]
	must(t, e.Deploy(t.Context(), app))
	v4, v6, err := e.Hops(t.Context(), node)
	must(t, err)
	must(t, testbed.Holds(t.Context(), localHold, func(ctx context.Context) error {
		for _, router := range bothRouters {
			for _, a := range addresses {
				hops, err := e.NextHops(ctx, router, a)
				if err != nil || slices.Contains(hops, v4) || slices.Contains(hops, v6) {
					return errors.Join(err, fmt.Errorf("%s has next hops %v for %s", router, hops, a))
				}
			}
		}
		return nil
	}))
	must(t, signal(t.Context(), "-CONT"))
	start := time.Now()
	e.hops(t, addresses, 2)
	t.Logf("routers have the routes %s after kube-proxy went on", since(start))
	recovered(t, streams)
	unharmed(t, streams, routes, addresses)
}
