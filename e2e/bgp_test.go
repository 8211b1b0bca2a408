//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

const (
	// bfdLimit is for routers to drop a silent node: well below the hold time of 9 s, which would do it without BFD.
	bfdLimit = 5 * time.Second
	// bfdInterval is such that routers without real-time priority keep it on a busy machine.
	bfdInterval = 200 * time.Millisecond
	// routerOff is how long a router is off: for as long speakers wait for BFD of a silent router, and then they dial.
	routerOff = 8 * time.Second
	// reconnectLimit is for a router that is back to have all routes, with its own start, in which FRR opens each session
	// of BFD twice: well below FRR's timer of 120 s.
	reconnectLimit = 10 * time.Second
	// flows are enough for each of three nodes to get some: fewer than one in 10^17 runs leaves a node out.
	flows = 100
)

var bothRouters = []string{testbed.Router1, testbed.Router2}

// testECMP sends flows from behind the routers: every flow is answered, and each node with a pod gets some of them.
func testECMP(t *testing.T, e *env) {
	app := e.app
	app.Name, app.Replicas, app.Nodes = "ecmp", int32(len(e.workers())), e.workers()
	must(t, e.Deploy(t.Context(), app))
	addresses := e.service(t, app, "ecmp", routed, local)
	e.hops(t, addresses, len(e.workers()))
	e.served(t, testbed.Far, addresses)
	for _, a := range addresses {
		s, err := e.Probe(t.Context(), testbed.Far, probe.TCP, a, "-n", fmt.Sprint(flows))
		must(t, err)
		results, err := s.Stop()
		must(t, err)
		nodes, failed := map[string]int{}, 0
		for _, r := range results {
			if !r.OK {
				failed++
				continue
			}
			nodes[r.Answer.Node]++
		}
		t.Logf("%s: %d flows, by node %v", family(a), len(results), nodes)
		if failed > 0 || len(results) != flows || len(nodes) != len(e.workers()) {
			t.Errorf("%s: %d of %d flows failed, and %d nodes served, want %d", family(a), failed, len(results), len(nodes),
				len(e.workers()))
		}
	}
}

// testBGPDrain cordons a node, which withdraws its routes without a failed request, and takes it back.
func testBGPDrain(t *testing.T, e *env) {
	addresses := e.service(t, e.app, "bgp-drain", routed)
	e.hops(t, addresses, len(e.workers()))
	e.served(t, testbed.Far, addresses)
	node := e.workers()[2]
	streams := e.watch(t, testbed.Far, addresses)
	routes := e.watchRoutes(t)
	cordon := func(ctx context.Context, verb string) error {
		_, err := e.Kubectl(ctx, verb, node)
		return err
	}
	undo(t, func(ctx context.Context) error { return cordon(ctx, "uncordon") })
	start := time.Now()
	must(t, cordon(t.Context(), "cordon"))
	must(t, testbed.Until(t.Context(), soon, "the reason in the condition", func(ctx context.Context) error {
		c, err := e.ServiceCondition(ctx, e.app.Namespace, "bgp-drain", v1beta1.ConditionAnnouncedBGP)
		if err == nil && !strings.Contains(c.Message, node+": NodeDraining") {
			err = fmt.Errorf("the condition is %s: %s", c.Reason, c.Message)
		}
		return err
	}))
	e.hops(t, addresses, len(e.workers())-1)
	t.Logf("routers dropped the routes of the cordoned node after %s", since(start))
	must(t, cordon(t.Context(), "uncordon"))
	e.hops(t, addresses, len(e.workers()))
	recovered(t, streams)
	unharmed(t, streams, routes, addresses)
}

// unharmed checks that no request failed but those under way when next hops changed, at most two for each change:
// routers then move flows of healthy nodes too.
func unharmed(t *testing.T, streams []watched, routes []*testbed.RouteWatch, addresses []netip.Addr) {
	t.Helper()
	var changes []testbed.RouteChange
	for _, w := range routes {
		changes = append(changes, w.Stop()...)
	}
	for i, w := range streams {
		results, err := w.stream.Stop()
		must(t, err)
		var here []testbed.RouteChange
		for _, c := range changes {
			if c.Prefix.Addr() == addresses[i] {
				here = append(here, c)
			}
		}
		underWay, failed := testbed.Seen{Results: results}.FailedApart(here)
		t.Logf("%s: of %d requests %d failed, and %d under way at one of %d changes of next hops%s", w.name, len(results),
			failed, underWay, len(here),
			failures(results))
		if failed > 0 || underWay > 2*len(here) {
			t.Errorf("%s: %d requests failed, and %d were under way at %d changes", w.name, failed, underWay, len(here))
		}
	}
}

// watchRoutes starts to collect the changes of the routes on both routers.
func (e *env) watchRoutes(t *testing.T) []*testbed.RouteWatch {
	t.Helper()
	var out []*testbed.RouteWatch
	for _, router := range bothRouters {
		w, err := e.WatchRoutes(t.Context(), router)
		must(t, err)
		out = append(out, w)
	}
	return out
}

// testBGPFaults has BFD find faults of a node, and of a router. No other node loses a route meanwhile.
func testBGPFaults(t *testing.T, e *env) {
	addresses := e.service(t, e.app, "bgp-faults", routed)
	node := e.workers()[2]
	noBFD, err := e.BFD(t.Context(), bfdInterval, e.workers())
	must(t, err)
	undo(t, noBFD)
	e.hops(t, addresses, len(e.workers()))
	// First: a node's session that fell more often waits before it is dialled.
	t.Run("router restart", func(t *testing.T) { e.routerRestart(t, addresses) })
	for _, fault := range []struct {
		name         string
		begin, mends func(context.Context) error
	}{
		{"frozen node", func(ctx context.Context) error {
			return e.Cluster.Freeze(ctx, node)
		}, func(ctx context.Context) error { return e.Cluster.Thaw(ctx, node) }},
		{"node's link down", func(ctx context.Context) error {
			return e.Cluster.SetLink(ctx, node, testbed.Fabric, false)
		}, e.Cluster.Heal},
		{"loss to the node", func(ctx context.Context) error {
			return e.Cluster.Cut(ctx, "", bothRouters, []string{node})
		}, e.Cluster.Heal},
		{"loss from the node", func(ctx context.Context) error {
			return e.Cluster.Cut(ctx, testbed.Fabric, []string{node}, bothRouters)
		}, e.Cluster.Heal},
	} {
		t.Run(fault.name, func(t *testing.T) {
			must(t, e.WaitBFD(t.Context(), e.workers()))
			routes := e.watchRoutes(t)
			undo(t, fault.mends)
			start := time.Now()
			must(t, fault.begin(t.Context()))
			for _, router := range bothRouters {
				for _, a := range addresses {
					must(t, e.WaitHops(t.Context(), bfdLimit, router, a, len(e.workers())-1))
				}
			}
			t.Logf("routers dropped the routes after %s", since(start))
			must(t, fault.mends(t.Context()))
			start = time.Now()
			e.hops(t, addresses, len(e.workers()))
			t.Logf("routers have the routes again after %s", since(start))
			e.others(t, routes, node, addresses)
		})
	}
}

// others checks that no route through another node went while one was gone.
func (e *env) others(t *testing.T, routes []*testbed.RouteWatch, node string, addresses []netip.Addr) {
	t.Helper()
	for _, w := range routes {
		changes := w.Stop()
		for _, other := range but(e.workers(), node) {
			v4, v6, err := e.Hops(t.Context(), other)
			must(t, err)
			for i, hop := range []netip.Addr{v4, v6} {
				for _, c := range changes {
					if c.Prefix.Addr() == addresses[i] && c.Lacks(hop) {
						t.Errorf("%s lost its route to %s through %s: %v", w.Router, c.Prefix, other, c.Hops)
					}
				}
			}
		}
	}
}

// routerRestart powers a router off and on: it has the routes again, and the other one keeps all of its own.
func (e *env) routerRestart(t *testing.T, addresses []netip.Addr) {
	must(t, e.WaitBFD(t.Context(), e.workers()))
	routes, err := e.WatchRoutes(t.Context(), testbed.Router2)
	must(t, err)
	must(t, e.Cluster.PowerOff(t.Context(), testbed.Router1))
	t.Cleanup(func() { e.ensureRouterOn(t) })
	must(t, testbed.Holds(t.Context(), routerOff, func(ctx context.Context) error {
		for _, a := range addresses {
			if hops, err := e.NextHops(ctx, testbed.Router2, a); err != nil || len(hops) != len(e.workers()) {
				return errors.Join(err, fmt.Errorf("%s has next hops %v for %s", testbed.Router2, hops, a))
			}
		}
		return nil
	}))
	must(t, e.Cluster.PowerOn(t.Context(), testbed.Router1))
	on := time.Now()
	for _, a := range addresses {
		must(t, e.WaitHops(t.Context(), reconnectLimit, testbed.Router1, a, len(e.workers())))
	}
	t.Logf("%s has all routes %s after its power came back", testbed.Router1, since(on))
	for _, c := range routes.Stop() {
		for _, a := range addresses {
			if c.Prefix.Addr() == a {
				t.Errorf("%s changed its route to %s: %v", testbed.Router2, a, c.Hops)
			}
		}
	}
}

// ensureRouterOn powers the router on after a failed test.
func (e *env) ensureRouterOn(t *testing.T) {
	ctx := context.Background()
	if _, err := e.On(ctx, testbed.Router1, "true"); err == nil {
		return
	}
	if err := e.Cluster.PowerOn(ctx, testbed.Router1); err != nil {
		t.Error(err)
	}
}
