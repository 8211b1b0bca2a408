//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// fewTroubles run with two or three speakers, where the claim of one node may contradict
// that of another.
var fewTroubles = []trouble{
	{name: "power-off", hit: plugPulled, mend: plugBack, leaves: true},
	// Of two nodes neither can find out which is faulty, unless the one that loses nearly all frames knows a foreign machine.
	{name: "inbound 90", hit: lose(wire.Loss{In: 90})},
	{name: "outbound 100", hit: lose(wire.Loss{Out: 100}), leaves: true},
	{name: "both 100", hit: lose(wire.Loss{In: 100, Out: 100}), leaves: true},
}

// testL2FewNodes restricts the speakers to two nodes, then to three, with -matrix only.
func testL2FewNodes(t *testing.T, e *env) {
	if !*matrix {
		t.Skip("shown with -matrix")
	}
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			e.speakersOn(t, e.workers()[:n])
			s := newSpread(t, e, onLAN)
			for _, tr := range fewTroubles {
				t.Run(tr.name, func(t *testing.T) { s.run(t, tr) })
			}
		})
	}
}

// speakersOn restricts the speakers to some nodes for the rest of the test.
func (e *env) speakersOn(t *testing.T, nodes []string) {
	t.Helper()
	const label = "e2e-speaker"
	undo(t, func(ctx context.Context) error {
		err := e.Install(ctx)
		for _, n := range nodes {
			_, unlabeled := e.Kubectl(ctx, "label", "node", n, label+"-")
			err = errors.Join(err, unlabeled)
		}
		return errors.Join(err, e.WaitReady(ctx))
	})
	for _, n := range nodes {
		_, err := e.Kubectl(t.Context(), "label", "--overwrite", "node", n, label+"=yes")
		must(t, err)
	}
	must(t, e.Install(t.Context(), "--set-string", "speaker.nodeSelector."+label+"=yes"))
	must(t, testbed.Until(t.Context(), time.Minute, "no other speaker", func(ctx context.Context) error {
		pods, err := e.Pods(ctx, testbed.Speaker)
		if err == nil && len(pods) != len(nodes) {
			err = fmt.Errorf("there are %d", len(pods))
		}
		return err
	}))
	must(t, e.WaitReady(t.Context()))
}

func plugPulled(t *testing.T, s *spread) { must(t, s.Cluster.PowerOff(t.Context(), s.hit)) }

func plugBack(t *testing.T, s *spread) {
	start := time.Now()
	must(t, s.Cluster.PowerOn(t.Context(), s.hit))
	must(t, s.WaitNode(t.Context(), s.hit, start))
}
