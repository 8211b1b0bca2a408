//go:build e2e

package e2e

import (
	"context"
	"testing"
)

// planRepairs counts where what the controller remembers was wrong.
const planRepairs = `holdfast_repairs_total{kind="plan"}`

// remembered checks that all that the leading controller remembers was right so far.
func (e *env) remembered(ctx context.Context, t *testing.T) {
	t.Helper()
	leader, err := e.leader(ctx)
	if err != nil {
		return // it was killed
	}
	all, err := e.ControllerMetrics(ctx, leader)
	if err == nil && all[planRepairs] > 0 {
		t.Errorf("%.0f Services that stood were to be written: see the log of the controller", all[planRepairs])
	}
}
