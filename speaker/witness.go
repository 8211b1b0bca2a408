package main

import (
	"context"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
)

const (
	// witnessInterval is the time between two looks at the memory of plans, and calmTime how long no verdict has changed before one: a look
	// costs as much as a plan from nothing, and must not delay a failover.
	witnessInterval = 5 * time.Minute
	calmTime        = 30 * time.Second
)

// newWitness returns a loop that looks whether the last plan is what is planned from nothing. Where they differ, that one wins.
func newWitness(w *syncer) *daemon.Loop {
	var epoch uint64
	look := func(context.Context) (again time.Duration, err error) {
		if last := w.last.Load(); last == nil || last.Epoch != epoch {
			if last != nil {
				epoch = last.Epoch
			}
			return calmTime, nil
		}
		if wrong := w.memory.Check(); len(wrong) > 0 {
			w.log.Error("plan differs from a plan from nothing, and is made again", "in", wrong)
			w.repairs.Add(1)
			w.loop.Kick()
		}
		return 0, nil
	}
	return daemon.NewLoop(daemon.LoopConfig{Name: "witness", Log: w.log, ResyncInterval: witnessInterval, Sync: look})
}
