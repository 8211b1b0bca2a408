//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"
)

// stall is how long, in total, the speakers' audits may report a fault while a test breaks nothing: on a busy machine
// a core may be unavailable for half a second, which is a real fault.
const stall = time.Second

// audited checks at the end of the test that the speakers' audits saw every address announced by exactly one node.
func (e *env) audited(t *testing.T) {
	t.Helper()
	before := e.audit(t.Context(), t)
	t.Cleanup(func() {
		for series, now := range e.audit(context.Background(), t) {
			// A speaker that started during the test counts from zero.
			was := before[series]
			if was > now {
				was = 0
			}
			if found := time.Duration((now - was) * float64(time.Second)); found > stall {
				t.Errorf("%s grew by %s, though nothing was broken", series, found)
			}
		}
	})
}

// audit returns the seconds of faults that the speakers' audits have counted, by node and series.
func (e *env) audit(ctx context.Context, t *testing.T) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, node := range e.Cluster.Nodes() {
		all, err := e.Metrics(ctx, node)
		if err != nil {
			t.Errorf("metrics of %s: %v", node, err)
			continue
		}
		for series, value := range all {
			if strings.HasPrefix(series, "holdfast_l2_double_owner_seconds_total") || strings.HasPrefix(series, "holdfast_l2_unclaimed_seconds_total") {
				out[node+" "+series] = value
			}
		}
	}
	if len(out) == 0 {
		t.Error("no speaker audits")
	}
	return out
}
