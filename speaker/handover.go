package main

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// handoverTime is how long a speaker that is to stop waits for others to
	// announce what it did: far less than the pod's grace period.
	handoverTime = 4 * time.Second
	// handoverInterval is between looks at what is not handed over yet.
	handoverInterval = 20 * time.Millisecond
)

// handOver waits until this speaker is told to stop, and then until what it
// announces is announced by others, as far as there is anybody who can. Until then
// it goes on with everything. It ends at once when ctx does.
func (w *syncer) handOver(ctx context.Context, told <-chan struct{}) {
	select {
	case <-ctx.Done():
		return
	case <-told:
	}
	if w.last.Load() == nil {
		return // nothing was announced yet, or nothing is any more
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
