//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// oftenWitnessed makes the daemons compare what they remember with what is computed from nothing in seconds, not
// minutes.
var oftenWitnessed = []string{
	"--set-json", `speaker.extraEnv=[{"name":"HOLDFAST_WITNESS","value":"2s"}]`,
	"--set-json", `controller.extraEnv=[{"name":"HOLDFAST_WITNESS","value":"2s"}]`,
}

// planRepairs counts where what a daemon remembers was wrong.
const planRepairs = `holdfast_repairs_total{kind="plan"}`

// remembered checks that all that the daemons of living nodes remember was right so far.
func (e *env) remembered(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, node := range e.Cluster.Nodes() {
		if all, err := e.Metrics(ctx, node); err == nil && all[planRepairs] > 0 {
			t.Errorf("%.0f times a plan of %s differed from a plan from nothing: see its log", all[planRepairs], node)
		}
	}
	leader, err := e.leader(ctx)
	if err != nil {
		return // it was killed
	}
	if all, err := e.ControllerMetrics(ctx, leader); err == nil && all[planRepairs] > 0 {
		t.Errorf("%.0f Services that stood were to be written: see the log of the controller", all[planRepairs])
	}
}

// testWitness waits for ten looks of each speaker at what it remembers, while Services come, and then plants a wrong
// entry in one.
func testWitness(t *testing.T, e *env) {
	for i := range 3 {
		e.service(t, e.app, fmt.Sprintf("witness-%d", i))
	}
	for _, node := range e.Cluster.Nodes() {
		e.looks(t, node, 10)
	}
	e.remembered(t.Context(), t)
	node := e.workers()[0]
	e.speakerEnv(t, node, map[string]string{"HOLDFAST_PLANT": "yes"})
	must(t, testbed.Until(t.Context(), 2*time.Minute, "wrong entry to be found", func(ctx context.Context) error {
		all, err := e.Metrics(ctx, node)
		if err == nil && all[planRepairs] == 0 {
			err = errors.New("none is found")
		}
		return err
	}))
	e.looks(t, node, e.looks(t, node, 10)+5)
	if all, err := e.Metrics(t.Context(), node); err != nil || all[planRepairs] != 1 {
		t.Errorf("%v differences are found, want only the planted one: %v", all[planRepairs], err)
	}
}

// looks waits until the speaker of a node has looked so often at what it remembers, and returns how often that was.
func (e *env) looks(t *testing.T, node string, wanted int) (n int) {
	t.Helper()
	must(t, testbed.Until(t.Context(), 2*time.Minute, "looks of "+node, func(ctx context.Context) error {
		out, err := e.On(ctx, node, "curl", "-s", "http://127.0.0.1:9219/debug/state")
		if err != nil {
			return err
		}
		var state struct{ Looks int }
		if err := json.Unmarshal([]byte(out), &state); err != nil {
			return err
		}
		if n = state.Looks; n < wanted {
			return fmt.Errorf("%d looks, want %d", n, wanted)
		}
		return nil
	}))
	return n
}
