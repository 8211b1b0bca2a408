//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"
)

// stall is for how long the speakers' audits may find fault in all while a test breaks nothing: a core of a machine
// that does everything at once may be gone for half a second, which is a fault of its own.
const stall = time.Second

// audited checks, when the test ends, that meanwhile the speakers heard no address announced twice, and none by nobody.
func (e *env) audited(t *testing.T) {
	t.Helper()
	before := e.audit(t.Context(), t)
	t.Cleanup(func() {
		for series, now := range e.audit(context.Background(), t) {
			// A counter of a speaker that started meanwhile begins at zero.
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

// audit returns what the speakers' audits have found, in seconds, by node and series.
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
