package daemon

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// memoryInterval is how often a look is taken at the memory.
const memoryInterval = 20 * time.Second

// returnMemory returns to the kernel, until ctx ends, what the process does not need at rest. The first list of all objects and each burst of
// changes leave garbage as large as all that lives, and the runtime alone keeps that memory: it expects to need it again soon. While it
// collects by itself it does.
func returnMemory(ctx context.Context, interval time.Duration) {
	sample := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}}
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for collected := uint64(0); ; collected = sample[0].Value.Uint64() {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		metrics.Read(sample)
		// A collection is worth a fifth of what lives.
		if lives, held := sample[1].Value.Uint64(), sample[2].Value.Uint64()+sample[3].Value.Uint64(); sample[0].Value.Uint64() == collected && held > lives+lives/5 {
			debug.FreeOSMemory()
			metrics.Read(sample)
		}
	}
}
