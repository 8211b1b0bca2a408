//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"golang.org/x/sync/errgroup"
)

// testFilterInside reaches Services whose source ranges admit no client. Pods and nodes are not
// subject to ranges, on the node that owns the address and on others.
func testFilterInside(t *testing.T, e *env) {
	inside := e.app
	inside.Name, inside.Nodes = "inside", e.workers()
	inside.Replicas = int32(len(inside.Nodes))
	must(t, e.Deploy(t.Context(), inside))
	pods, err := e.AppPods(t.Context(), inside)
	must(t, err)
	for _, w := range []way{ways[0], ways[2]} {
		t.Run(w.name, func(t *testing.T) {
			addresses := e.service(t, e.app, "inside-"+w.name, append(w.changes, from(unusedRanges...))...)
			e.shut(t, w.host, addresses)
			if !w.routers {
				owner, err := e.WaitOwner(t.Context(), w.host, addresses[0])
				must(t, err)
				t.Logf("the owner is %s", owner)
			}
			var group errgroup.Group
			group.SetLimit(4)
			for _, d := range frontendsOf(addresses) {
				for i := range pods {
					group.Go(func() error {
						return testbed.Until(t.Context(), soon, "an answer in "+pods[i].Name, func(ctx context.Context) error {
							_, err := e.FetchIn(ctx, &pods[i], d.protocol, d.at.Addr())
							return err
						})
					})
				}
				for _, node := range e.Cluster.Nodes() {
					group.Go(func() error {
						_, err := e.WaitFetch(t.Context(), node, d.protocol, d.at.Addr())
						return err
					})
				}
			}
			must(t, group.Wait())
			// The exemption from the ranges does not apply to other clients.
			e.shut(t, w.host, addresses)
		})
	}
	t.Run("internalTrafficPolicy Local", func(t *testing.T) {
		addresses := e.service(t, e.app, "inside-local", from(unusedRanges...))
		e.patchService(t, "inside-local", `{"spec":{"internalTrafficPolicy":"Local"}}`)
		for i := range pods {
			if pods[i].Spec.NodeName != e.workers()[2] {
				continue
			}
			must(t, testbed.Until(t.Context(), soon, "the ranges to hold inside", func(ctx context.Context) error {
				if got, err := e.FetchIn(ctx, &pods[i], protocols[0], addresses[0]); err == nil {
					return fmt.Errorf("an answer of %s", got.Pod)
				}
				return nil
			}))
		}
	})
}
