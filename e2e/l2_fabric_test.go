//go:build e2e

package e2e

import (
	"testing"

	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// The nodes' own network is well in all of them, and carrier stays.
var fabricTroubles = []trouble{
	{name: "port dead", hit: lose(lab.Loss{In: 100, Out: 100, Link: testbed.Fabric}), leaves: true},
	{name: "port deaf", hit: lose(lab.Loss{In: 100, Link: testbed.Fabric}), leaves: true},
	{name: "port mute", hit: lose(lab.Loss{Out: 100, Link: testbed.Fabric}), leaves: true},
	// The switch keeps the nodes apart there, as some do with all ports but those of routers.
	{name: "nobody hears anybody", hit: isolate, stays: true},
}

// testL2Fabric shows trouble on a second network that addresses are announced on, with -matrix only.
func testL2Fabric(t *testing.T, e *env) {
	if !*matrix {
		t.Skip("shown with -matrix")
	}
	s := newSpread(t, e, onFabric)
	for _, tr := range fabricTroubles {
		t.Run(tr.name, func(t *testing.T) { s.run(t, tr) })
	}
}

// isolate keeps all nodes apart on the second network; hosts outside hear each of them.
func isolate(t *testing.T, s *spread) {
	nodes := s.Cluster.Nodes()
	must(t, s.Cluster.Cut(t.Context(), testbed.Fabric, nodes, nodes))
}
