package loop

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var runs []time.Duration
		var fail atomic.Bool
		l := New(Config{Name: "test", Log: slog.New(slog.DiscardHandler), Sync: func(context.Context) error {
			runs = append(runs, time.Since(start))
			if fail.Load() {
				return errors.New("no")
			}
			return nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()

		at := func(d time.Duration) { time.Sleep(d - time.Since(start)); synctest.Wait() }
		at(time.Second)
		l.Kick() // after a quiet time: at once
		at(time.Second + time.Millisecond)
		l.Kick() // within the interval: two kicks, one run, 100 ms after the last
		l.Kick()
		at(2 * time.Second)
		fail.Store(true)
		l.Kick() // fails: again after 200 ms, then 400 ms
		at(2700 * time.Millisecond)
		fail.Store(false)
		at(3500 * time.Millisecond)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		ms := time.Millisecond
		want := []time.Duration{0, 1000 * ms, 1100 * ms, 2000 * ms, 2200 * ms, 2600 * ms, 3400 * ms}
		if len(runs) != len(want) {
			t.Fatalf("runs at %v, want %v", runs, want)
		}
		for i := range want {
			if runs[i] != want[i] {
				t.Errorf("run %d at %v, want %v", i, runs[i], want[i])
			}
		}
		if l.Done() != 4 {
			t.Errorf("Done = %d, want 4", l.Done())
		}
	})
}
