//go:build e2e && proxy

package e2e

import (
	"testing"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

func init() { proxyParts = append(proxyParts, testCase{"AgentHangs", proxyAgentHangs}) }

// proxyAgentHangs stops all agents: their parents start others, which serve a Service that is new. No client notices.
func proxyAgentHangs(t *testing.T, e *env) {
	addresses := e.proxiedService(t, "proxy-hang", to(8080), annotation("holdfast.dev/data-path", "Proxy"))
	w, err := e.Watch(t.Context(), testbed.Client, probe.TCP, addresses)
	must(t, err)
	kept, err := e.Keep(t.Context(), testbed.Client, 10, addresses...)
	must(t, err)
	for _, node := range e.workers()[:2] {
		_, err := e.On(t.Context(), node, "pkill", "-STOP", "-f", "holdfast-proxy work|/proc/self/exe work")
		must(t, err)
	}
	e.proxiedService(t, "proxy-hang-new", to(8080), annotation("holdfast.dev/data-path", "Proxy"))
	survived, err := kept.Stop()
	must(t, err)
	if survived.Lost() > 0 {
		t.Errorf("beside agents that hang %s", survived)
	}
	none(t, "agents that hang", w)
}
