//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// flushOutage is the limit from a flush of kube-proxy's rules until another node serves: rules must be missing for two
// seconds, since a kube-proxy that changes its mode removes them too.
const flushOutage = 5 * time.Second

// testRulesFlushed empties the ruleset of a node, as a reload of its firewall does: another node serves its addresses until
// kube-proxy has made its rules again.
func testRulesFlushed(t *testing.T, e *env) {
	commands := []string{"nft flush ruleset"}
	if strings.Contains(t.Name(), "iptables") {
		commands = append(commands, "iptables -t nat -F; ip6tables -t nat -F")
	}
	for _, command := range commands {
		t.Run(command, func(t *testing.T) { e.rulesFlushed(t, command) })
	}
}

func (e *env) rulesFlushed(t *testing.T, command string) {
	l2 := e.service(t, e.app, "flushed-l2")
	bgp := e.service(t, e.app, "flushed-bgp", routed)
	e.served(t, testbed.Client, l2)
	e.hops(t, bgp, len(e.workers()))
	owner, err := e.WaitOwner(t.Context(), testbed.Client, l2[0])
	must(t, err)
	e.owned(t, l2, func(node string) bool { return node == owner })
	streams := e.watch(t, testbed.Client, l2)

	undo(t, e.restartProxies)
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

	must(t, e.restartProxies(t.Context()))
	e.owned(t, l2, func(node string) bool { return node == owner })
	e.hops(t, bgp, len(e.workers()))
	e.served(t, testbed.Client, l2)
}

// restartProxies ends kube-proxy on all nodes, which start it again: it makes all its rules.
func (e *env) restartProxies(ctx context.Context) error {
	return e.onNodes(ctx, "pkill -x kube-proxy || true")
}
