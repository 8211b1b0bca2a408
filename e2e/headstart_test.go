//go:build e2e

package e2e

import (
	"context"
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// testHeadStart creates Services while kube-proxy is frozen on every node: their addresses are served all the same. Open
// connections stay when kube-proxy goes on and takes over.
func testHeadStart(t *testing.T, e *env) {
	freeze := func(ctx context.Context, signal string) {
		for _, node := range e.Cluster.Nodes() {
			if _, err := e.On(ctx, node, "pkill", signal, "-x", "kube-proxy"); err != nil {
				t.Error(err)
			}
		}
	}
	freeze(t.Context(), "-STOP")
	t.Cleanup(func() { freeze(context.Background(), "-CONT") })
	var kept []testbed.Connections
	var served [][]netip.Addr
	for _, w := range ways {
		addresses := e.service(t, e.app, "start-"+w.name, w.changes...)
		e.open(t, w.host, addresses)
		c, err := e.Keep(t.Context(), w.host, 10, addresses...)
		must(t, err)
		kept, served = append(kept, c), append(served, addresses)
	}
	freeze(t.Context(), "-CONT")
	for i, w := range ways {
		for _, node := range e.Cluster.Nodes() {
			e.proxies(t, node, served[i])
		}
		e.open(t, w.host, served[i])
	}
	for i, c := range kept {
		survived, err := c.Stop()
		must(t, err)
		if survived.Lost() > 0 {
			t.Errorf("%s: %s", ways[i].name, survived)
		}
	}
}
