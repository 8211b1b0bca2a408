package main

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// handoverTime bounds how long a speaker that stops waits for others to take its addresses over: far less than
	// the pod's grace period.
	handoverTime = 4 * time.Second
	// handoverInterval is the time between two checks whether all addresses are handed over.
	handoverInterval = 20 * time.Millisecond
)

// handOver waits for the order to stop, and then until others announce the addresses of this node, if any other node
// can. Until then this speaker goes on with everything. It returns at once when ctx ends.
func (w *syncer) handOver(ctx context.Context, stop <-chan struct{}) {
	select {
	case <-ctx.Done():
		return
	case <-stop:
	}
	if w.last.Load() == nil {
		return // this node announces nothing yet, or has withdrawn everything
	}
	w.stopping.Store(true)
	w.loop.Kick()
	ctx, cancel := context.WithTimeout(ctx, handoverTime)
	defer cancel()
	start := time.Now()
	err := wait.PollUntilContextCancel(ctx, handoverInterval, true, func(context.Context) (bool, error) {
		return w.saidGoodbye.Load() && w.layer2.Handing() == 0, nil
	})
	w.log.Info("stopping", "handedOver", err == nil, "after", time.Since(start).Round(time.Millisecond))
}
