//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// flushOutage is the limit from a flush of kube-proxy's rules until another node serves: rules must be missing for two
// seconds, since a kube-proxy that changes its mode removes them too.
const flushOutage = 5 * time.Second

// flushHold is how long addresses are watched after a fault of all nodes.
const flushHold = 2 * time.Second

// testRulesFlushed empties rulesets, as a reload of a firewall does. If one node loses kube-proxy's rules, another one
// serves its addresses until they are back. If all nodes do, all keep their addresses and routes.
func testRulesFlushed(t *testing.T, e *env) {
	// They are older than the second loss: by then the head start of new addresses is gone, and hides nothing.
	l2 := e.service(t, e.app, "flushed-l2")
	bgp := e.service(t, e.app, "flushed-bgp", routed)
	e.served(t, testbed.Client, l2)
	e.hops(t, bgp, len(e.workers()))
	undo(t, e.restartKubeProxies)

	const reload = "nft flush ruleset"
	t.Run(reload, func(t *testing.T) { e.rulesFlushed(t, reload, l2, bgp) })
	// What all nodes lose does not depend on the mode of kube-proxy.
	if strings.Contains(t.Name(), "iptables") {
		const flush = "iptables -t nat -F; ip6tables -t nat -F"
		t.Run(flush, func(t *testing.T) { e.rulesFlushed(t, flush, l2, bgp) })
	} else {
		t.Run("all nodes", func(t *testing.T) { e.allRulesFlushed(t, l2, bgp) })
	}
}

// rulesFlushed takes the rules of the node that owns the addresses of layer 2. Its kube-proxy is stopped before:
// it looks at its rules every 30 s, and would make them again at its next look, which may come at once.
func (e *env) rulesFlushed(t *testing.T, command string, l2, bgp []netip.Addr) {
	owner, err := e.WaitOwner(t.Context(), testbed.Client, l2[0])
	must(t, err)
	e.owned(t, l2, func(node string) bool { return node == owner })
	streams := e.watch(t, testbed.Client, l2)

	must(t, e.do(t.Context(), owner, "pkill", "-STOP", "-x", "kube-proxy"))
	must(t, e.do(t.Context(), owner, "sh", "-c", command))
	e.owned(t, l2, func(node string) bool { return node != owner })
	e.hops(t, bgp, len(e.workers())-1)
	recovered(t, streams)
	for _, w := range streams {
		results, err := w.stream.Stop()
		must(t, err)
		logOutages(t, "flush, "+w.name, results)
		if longest, some := probe.Longest(probe.Outages(results)); some && longest.Length() > flushOutage {
			t.Errorf("%s: no answer for %v", w.name, longest.Length())
		}
	}

	must(t, e.restartKubeProxies(t.Context()))
	e.owned(t, l2, func(node string) bool { return node == owner })
	e.hops(t, bgp, len(e.workers()))
	e.served(t, testbed.Client, l2)
}

// allRulesFlushed takes the rules of all nodes, whose kube-proxies are stopped so that none makes them again at once.
func (e *env) allRulesFlushed(t *testing.T, l2, bgp []netip.Addr) {
	owner, err := e.WaitOwner(t.Context(), testbed.Client, l2[0])
	must(t, err)

	must(t, e.onNodes(t.Context(), "pkill -STOP -x kube-proxy"))
	must(t, e.onNodes(t.Context(), "nft flush ruleset"))
	for _, node := range e.workers() {
		e.problem(t, node, "KubeProxyNotReady", 1)
	}
	e.stays(t, l2[0], owner, bgp)

	must(t, e.restartKubeProxies(t.Context()))
	for _, node := range e.workers() {
		e.problem(t, node, "KubeProxyNotReady", 0)
	}
	e.stays(t, l2[0], owner, bgp)
	e.served(t, testbed.Client, l2)
	e.served(t, testbed.Far, bgp)
}

// stays checks that after a fault of all nodes an address has the owner of before, and that all workers have the
// routes, for some time. The nodes see such a fault one after the other, and until the last one has, it alone counts as
// well.
func (e *env) stays(t *testing.T, a netip.Addr, owner string, routed []netip.Addr) {
	t.Helper()
	check := func(ctx context.Context) error { return e.unmoved(ctx, a, owner, routed) }
	start := time.Now()
	must(t, testbed.Until(t.Context(), soon, "owner and routes as before", check))
	t.Logf("owner and routes are as before after %s", since(start))
	must(t, testbed.Holds(t.Context(), flushHold, check))
}

// unmoved returns an error unless the node owns the address, and all workers have the routes.
func (e *env) unmoved(ctx context.Context, a netip.Addr, owner string, routed []netip.Addr) error {
	node, err := e.WaitOwner(ctx, testbed.Client, a)
	if err != nil {
		return err
	}
	if node != owner {
		return fmt.Errorf("%s is announced by %s, and was by %s", a, node, owner)
	}

	for _, router := range bothRouters {
		for _, r := range routed {
			hops, err := e.NextHops(ctx, router, r)
			if err != nil {
				return err
			}
			if len(hops) != len(e.workers()) {
				return fmt.Errorf("%s has the next hops %v for %s", router, hops, r)
			}
		}
	}
	return nil
}

// restartKubeProxies ends kube-proxy on all nodes, which start it again: it makes all its rules.
func (e *env) restartKubeProxies(ctx context.Context) error {
	return e.onNodes(ctx, "pkill -KILL -x kube-proxy || true")
}
