//go:build e2e

package e2e

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
)

const internalAnnotation = "holdfast.dev/internal-traffic"

// testFilterInside reaches Services whose source ranges admit no client from within the cluster: from pods on the owner
// and elsewhere, and from nodes, which is what a pod of the host's network is. They are sources like any other, until
// the Service lets them in by its annotation.
func testFilterInside(t *testing.T, e *env) {
	inside := e.app
	inside.Name, inside.Nodes = "inside", e.workers()
	inside.Replicas = int32(len(inside.Nodes))
	must(t, e.Deploy(t.Context(), inside))
	pods, err := e.AppPods(t.Context(), inside)
	must(t, err)
	for _, w := range []way{ways[0], ways[2]} {
		t.Run(w.name, func(t *testing.T) {
			name := "inside-" + w.name
			addresses := e.service(t, e.app, name, append(w.changes, from(unusedRanges...))...)
			e.shut(t, w.host, addresses)
			if !w.routers {
				owner, err := e.WaitOwner(t.Context(), w.host, addresses[0])
				must(t, err)
				t.Logf("the owner is %s", owner)
			}
			e.withinCluster(t, pods, addresses, nothing)
			e.says(t, name, "sources like any other")
			e.annotate(t, name, internalAnnotation, "Allow")
			e.withinCluster(t, pods, addresses, anAnswer)
			e.says(t, name, "may come in too")
			// The exemption from the ranges does not apply to other clients.
			e.shut(t, w.host, addresses)
			e.annotate(t, name, internalAnnotation, nil)
			e.withinCluster(t, pods, addresses, nothing)
			// Our own list, of which kube-proxy knows nothing, admits what is in it.
			e.setSources(t, name, nil)
			e.annotate(t, name, sourcesAnnotation, strings.Join(addressesOf(&pods[0]), ","))
			e.withinCluster(t, pods[:1], addresses, anAnswer)
			e.withinCluster(t, pods[1:], addresses, nothing)
		})
	}
	t.Run("internalTrafficPolicy Local", func(t *testing.T) {
		addresses := e.service(t, e.app, "inside-local", from(unusedRanges...), annotation(internalAnnotation, "Allow"))
		e.withinCluster(t, pods[2:3], addresses, anAnswer)
		e.patchService(t, "inside-local", `{"spec":{"internalTrafficPolicy":"Local"}}`)
		e.withinCluster(t, pods[2:3], addresses, nothing)
	})
}

// says waits until the condition Filtered of a Service of the application says something.
func (e *env) says(t *testing.T, name, want string) {
	t.Helper()
	must(t, testbed.Until(t.Context(), soon, "the condition Filtered to say "+want, func(ctx context.Context) error {
		c, err := e.ServiceCondition(ctx, e.app.Namespace, name, v1beta1.ConditionFiltered)
		if err == nil && !strings.Contains(c.Message, want) {
			err = errors.New(c.Message)
		}
		return err
	}))
}

func addressesOf(pod *corev1.Pod) []string {
	var out []string
	for _, ip := range pod.Status.PodIPs {
		out = append(out, ip.IP)
	}
	return out
}

// withinCluster waits until pods and, if all pods are asked, nodes find what they should at the addresses.
func (e *env) withinCluster(t *testing.T, pods []corev1.Pod, addresses []netip.Addr, want reply) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(6)
	expect := func(what string, fetch func(ctx context.Context) error) {
		group.Go(func() error {
			return testbed.Until(t.Context(), soon, string(want)+" in "+what, func(ctx context.Context) error {
				switch err := fetch(ctx); {
				case want == anAnswer:
					return err
				case err == nil:
					return errors.New("an answer")
				}
				return nil
			})
		})
	}
	for _, d := range frontendsOf(addresses) {
		for i := range pods {
			expect(pods[i].Name, func(ctx context.Context) error {
				_, err := e.FetchIn(ctx, &pods[i], d.protocol, d.at.Addr())
				return err
			})
		}
		if len(pods) < len(e.workers()) {
			continue
		}
		for _, node := range e.Cluster.Nodes() {
			expect(node, func(ctx context.Context) error {
				_, err := e.Fetch(ctx, node, d.protocol, d.at.Addr())
				return err
			})
		}
	}
	must(t, group.Wait())
}
