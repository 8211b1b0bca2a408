//go:build e2e

package e2e

import (
	"testing"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// In all of them the nodes' own network works, and the links keep their carrier.
var fabricTroubles = []trouble{
	{name: "port dead", hit: lose(wire.Loss{In: 100, Out: 100, Link: testbed.Fabric}), leaves: true},
	{name: "port deaf", hit: lose(wire.Loss{In: 100, Link: testbed.Fabric}), leaves: true},
	{name: "port mute", hit: lose(wire.Loss{Out: 100, Link: testbed.Fabric}), leaves: true},
	// The switch isolates the nodes from each other, as some switches isolate all ports but the routers'.
	{name: "isolated nodes", hit: isolate, stays: true},
}

// testL2Fabric runs faults of a second network on which addresses are announced, with -matrix only.
func testL2Fabric(t *testing.T, e *env) {
	if !*matrix {
		t.Skip("shown with -matrix")
	}
	s := newSpread(t, e, onFabric)
	for _, tr := range fabricTroubles {
		t.Run(tr.name, func(t *testing.T) { s.run(t, tr) })
	}
}

// isolate drops frames between nodes on the second network; outside hosts receive frames of each node.
func isolate(t *testing.T, s *spread) {
	nodes := s.Cluster.Nodes()
	must(t, s.Cluster.Cut(t.Context(), testbed.Fabric, nodes, nodes))
}
