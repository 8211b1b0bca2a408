package daemon

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"
)

// TestReturnMemory: the memory of garbage is returned to the kernel, even though the runtime does not collect it.
func TestReturnMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	const size = 64 << 20
	garbage := make([]byte, size)
	for i := range garbage {
		garbage[i] = 1
	}
	runtime.KeepAlive(garbage)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { returnMemory(ctx, 5*time.Millisecond, -1) })
	deadline := time.After(10 * time.Second)
	for poll := time.Tick(10 * time.Millisecond); ; <-poll {
		var m runtime.MemStats
		if runtime.ReadMemStats(&m); m.HeapSys-m.HeapReleased < size {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%d MiB are held, %d of them in use", (m.HeapSys-m.HeapReleased)>>20, m.HeapAlloc>>20)
		default:
		}
	}
}

// TestStartGarbage: after the start, GOGC is as usual.
func TestStartGarbage(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(startGCPercent))
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { returnMemory(ctx, time.Millisecond, 77) })
	for poll := time.Tick(10 * time.Millisecond); debug.SetGCPercent(startGCPercent) != 77; <-poll {
		if ctx.Err() != nil {
			t.Fatal("the start does not end")
		}
	}
}
