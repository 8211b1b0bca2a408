package main

import (
	"context"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

const (
	// idleTime is the time for which an idle speaker is measured.
	idleTime  = time.Minute
	cpuMetric = "process_cpu_seconds_total"
	// heartbeatPrefix precedes this metric's name where a speaker reports it for its heartbeat process.
	heartbeatPrefix = "holdfast_heartbeat_"
)

// idleEmpty measures the share of a core, in thousandths, of a speaker without Services.
func idleEmpty(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	node := b.Cluster.Nodes()[1]
	// Let the work that the preparation caused end first.
	if err := pause(ctx, 10*time.Second); err != nil {
		return nil, err
	}

	before, err := b.Metrics(ctx, node)
	if err != nil {
		return nil, err
	}

	start := time.Now()
	if err := pause(ctx, idleTime); err != nil {
		return nil, err
	}

	after, err := b.Metrics(ctx, node)
	if err != nil {
		return nil, err
	}

	share := func(name string) float64 {
		return 1000 * (after[name] - before[name]) / time.Since(start).Seconds()
	}

	speaker := share(cpuMetric)
	heartbeat := share(heartbeatPrefix + cpuMetric)
	progress("millicores: speaker %.1f, heartbeat process %.1f", speaker, heartbeat)
	return map[string]float64{"scale_idle_empty_millicores": speaker + heartbeat}, nil
}

// pause waits for some time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
