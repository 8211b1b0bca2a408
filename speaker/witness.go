package main

import (
	"context"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
)

const (
	// witnessInterval is the time between two looks at the memory of plans, and calmTime how long no verdict has
	// changed before one: a look costs as much as a plan from nothing, and must not delay a failover.
	witnessInterval = 9 * time.Minute
	calmTime        = 30 * time.Second
	// plantAfter is after how many looks a rehearsal plants its wrong entry.
	plantAfter = 10
)

// witness looks whether the last plan is what is planned from nothing. Where they differ, that one wins.
type witness struct {
	*daemon.Loop
	w    *syncer
	calm time.Duration
	// plant a wrong entry, for a test that it is found.
	plant bool
	// epoch of the verdicts at the last look; looks and repairs count the looks and those that found a difference.
	epoch          uint64
	looks, repairs atomic.Int64
}

// newWitness returns a witness. HOLDFAST_PLANT in the environment makes it plant an entry, in tests on a cluster.
func newWitness(w *syncer) *witness {
	interval := daemon.WitnessInterval(witnessInterval)
	out := &witness{w: w, calm: min(calmTime, interval), plant: os.Getenv("HOLDFAST_PLANT") != ""}
	out.Loop = daemon.NewLoop(daemon.LoopConfig{Name: "witness", Log: w.log, ResyncInterval: interval, Sync: out.look})
	return out
}

func (o *witness) look(context.Context) (again time.Duration, err error) {
	last := o.w.last.Load()
	if last == nil || last.Epoch != o.epoch {
		if last != nil {
			o.epoch = last.Epoch
		}
		return o.calm, nil
	}
	wrong := o.w.memory.Check()
	debug.FreeOSMemory() // a plan of 10,000 Services from nothing leaves 50 MiB
	if len(wrong) > 0 {
		o.w.log.Error("plan differs from a plan from nothing, and is made again", "in", wrong)
		o.repairs.Add(1)
		o.w.loop.Kick()
	}
	// An entry that is planted while a plan is made is lost.
	if looks := o.looks.Add(1); o.plant && looks >= plantAfter && o.repairs.Load() == 0 {
		o.w.memory.Plant()
	}
	return 0, nil
}
