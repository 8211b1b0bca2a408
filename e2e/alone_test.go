//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"
)

// alone checks at the end of the test that no speaker saw another machine, a second speaker included, claim an address of its own.
func (e *env) alone(t *testing.T) {
	t.Helper()
	before := e.conflicts(t.Context(), t)
	t.Cleanup(func() {
		for series, now := range e.conflicts(context.Background(), t) {
			// A speaker that started during the test counts from zero.
			was := before[series]
			if was > now {
				was = 0
			}
			if now > was {
				t.Errorf("%s grew from %.0f to %.0f, though nothing was broken", series, was, now)
			}
		}
	})
}

// conflicts returns how often each speaker saw an address of its own claimed, by node and series.
func (e *env) conflicts(ctx context.Context, t *testing.T) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, node := range e.Cluster.Nodes() {
		all, err := e.Metrics(ctx, node)
		if err != nil {
			t.Errorf("metrics of %s: %v", node, err)
			continue
		}
		for series, value := range all {
			if strings.HasPrefix(series, "holdfast_l2_conflicts_total") {
				out[node+" "+series] = value
			}
		}
	}
	if len(out) == 0 {
		t.Error("no speaker counts conflicts")
	}
	return out
}
