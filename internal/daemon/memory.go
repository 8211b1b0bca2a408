package daemon

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// memoryInterval is how often a look is taken at the memory.
	memoryInterval = 20 * time.Second
	// startGarbage is how much garbage there may be while the first list of all objects is read, in percent of what
	// lives: what stays lies among it, and keeps its pages.
	startGarbage = 20
	// startTicks end the start, if nothing does before.
	startTicks = 6
)

// returnMemory returns to the kernel, until ctx ends, what the process does not need at rest. The first list of all
// objects and each burst of changes leave garbage as large as all that lives, and the runtime alone keeps that memory:
// it expects to need it again soon. While it collects by itself it does. When the start is over there may be as much
// garbage as usual. Who sets GOGC decides all this.
func returnMemory(ctx context.Context, interval time.Duration, usual int) {
	sample := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	ticks := time.Tick(interval)
	started := false
	for i, collected := 1, uint64(0); ; i, collected = i+1, sample[0].Value.Uint64() {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
		metrics.Read(sample)
		quiet := sample[0].Value.Uint64() == collected
		if !started && (quiet || i == startTicks) {
			started = true
			debug.SetGCPercent(usual)
		}
		// A collection is worth a tenth of what lives.
		if lives, held := sample[1].Value.Uint64(), sample[2].Value.Uint64()+sample[3].Value.Uint64(); quiet &&
			held > lives+lives/10 {
			debug.FreeOSMemory()
			metrics.Read(sample)
		}
	}
}
