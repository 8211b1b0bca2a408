package daemon

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// memoryInterval is the time between two checks of the heap.
	memoryInterval = 20 * time.Second
	// startGCPercent is GOGC while the first list of all objects is read. Objects that stay are allocated among the
	// garbage of that list, and keep its pages from being returned.
	startGCPercent = 20
	// maxStartTicks is the number of checks after which the start is over in any case.
	maxStartTicks = 6
)

// Indices of the samples that returnMemory reads.
const (
	cycles = iota
	liveBytes
	objectBytes
	freeBytes
)

// returnMemory returns to the kernel the memory that the process does not need at rest, until ctx ends. The first list
// of all objects and each burst of changes leave as much garbage as there is live data. The runtime keeps such memory,
// since it expects to need it again soon.
//
// The start is over when no garbage collection ran for an interval; from then on GOGC is usualGCPercent. Do not call
// returnMemory if the user sets GOGC.
func returnMemory(ctx context.Context, interval time.Duration, usualGCPercent int) {
	samples := []metrics.Sample{
		cycles:      {Name: "/gc/cycles/total:gc-cycles"},
		liveBytes:   {Name: "/gc/heap/live:bytes"},
		objectBytes: {Name: "/memory/classes/heap/objects:bytes"},
		freeBytes:   {Name: "/memory/classes/heap/free:bytes"},
	}
	ticks := time.Tick(interval)
	started := false
	lastCycles := uint64(0)

	for tick := 1; ; tick++ {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}

		metrics.Read(samples)
		isQuiet := samples[cycles].Value.Uint64() == lastCycles
		if !started && (isQuiet || tick == maxStartTicks) {
			started = true
			debug.SetGCPercent(usualGCPercent)
		}

		// Only a gain of more than a tenth of the live data is worth a collection.
		live := samples[liveBytes].Value.Uint64()
		held := samples[objectBytes].Value.Uint64() + samples[freeBytes].Value.Uint64()
		if isQuiet && held > live+live/10 {
			debug.FreeOSMemory()
			metrics.Read(samples)
		}
		lastCycles = samples[cycles].Value.Uint64()
	}
}
