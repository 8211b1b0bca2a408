// Package loop runs one function, never twice at once, whenever it was kicked.
// A kick carries no payload: the function rereads everything. The package knows
// nothing of what it runs.
package loop

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// The pause after a run is costFactor times what the run took, so that a loop takes a tenth of a core at most,
// within these bounds.
const (
	costFactor = 10
	leastPause = 5 * time.Millisecond
	mostPause  = time.Second
)

// Config of a Loop. Zero durations take the defaults.
type Config struct {
	// Name appears in log lines.
	Name string
	Log  *slog.Logger
	// Sync is run for every burst of kicks. It returns when it wants to run again though nobody kicks, 0 for
	// the slow tick. Its error is logged when it changes, and Sync runs again.
	Sync func(context.Context) (again time.Duration, err error)
	// MinInterval is the least time between the starts of two runs; default 0. The first
	// run after a quiet time starts at once, since a failover must not wait.
	MinInterval time.Duration
	// RetryInterval is the wait after a failed run; it doubles up to MaxRetryInterval. Default 200 ms.
	RetryInterval time.Duration
	// MaxRetryInterval defaults to 10 s.
	MaxRetryInterval time.Duration
	// ResyncInterval is the slow tick that heals what no event told; default 30 s.
	ResyncInterval time.Duration
}

// Loop coalesces kicks into runs of one function.
type Loop struct {
	config       Config
	kicks, hurry chan struct{}
	done         atomic.Int64
}

// New returns a Loop that Run starts.
func New(c Config) *Loop {
	defaults := []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.RetryInterval, 200 * time.Millisecond},
		{&c.MaxRetryInterval, 10 * time.Second},
		{&c.ResyncInterval, 30 * time.Second},
	}
	for _, d := range defaults {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	return &Loop{config: c, kicks: make(chan struct{}, 1), hurry: make(chan struct{}, 1)}
}

// Kick asks for a run. It never blocks.
func (l *Loop) Kick() { signal(l.kicks) }

// Hurry asks for a run that does not wait for the pause after a costly one: a node has died. It is for what
// happens seldom. It never blocks.
func (l *Loop) Hurry() {
	signal(l.hurry)
	l.Kick()
}

func signal(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default: // a run is already asked for, and it will see what this kick is about
	}
}

// Done counts the runs that ended without an error.
func (l *Loop) Done() int64 { return l.done.Load() }

// Run runs the function once, then for every burst of kicks, until ctx is cancelled. It returns nil.
func (l *Loop) Run(ctx context.Context) error {
	var logged string
	retry := l.config.RetryInterval
	for {
		started := time.Now()
		again, err := l.config.Sync(ctx)
		cost := time.Since(started)
		switch {
		case err == nil:
			l.done.Add(1)
			logged, retry = "", l.config.RetryInterval
		case ctx.Err() == nil:
			if err.Error() != logged {
				logged = err.Error()
				l.config.Log.Error("sync failed, will retry", "loop", l.config.Name, "error", err)
			}
			again = soonest(again, retry)
			retry = min(2*retry, l.config.MaxRetryInterval)
		}
		if !l.sleep(ctx, soonest(again, l.config.ResyncInterval), l.pause(cost)) {
			return nil
		}
	}
}

// soonest returns the shorter time, of which again may be 0 for never.
func soonest(again, other time.Duration) time.Duration {
	if again <= 0 {
		return other
	}
	return min(again, other)
}

// pause returns how long to rest after a run.
func (l *Loop) pause(cost time.Duration) time.Duration {
	return max(min(max(costFactor*cost, leastPause), mostPause), l.config.MinInterval-cost)
}

// sleep returns when the next run is due: after a kick, or after wait, but not before the pause is over or
// cut short. It reports false when ctx ended.
func (l *Loop) sleep(ctx context.Context, wait, pause time.Duration) bool {
	due, least, rest := time.NewTimer(wait), time.NewTimer(leastPause), time.NewTimer(pause)
	defer due.Stop()
	defer least.Stop()
	defer rest.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-due.C:
	case <-l.kicks:
	}
	select {
	case <-ctx.Done():
		return false
	case <-least.C:
	}
	select {
	case <-ctx.Done():
		return false
	case <-rest.C:
	case <-l.hurry:
	}
	for _, signal := range []chan struct{}{l.kicks, l.hurry} {
		select {
		case <-signal: // came during the pause: the run that starts now sees what it is about
		default:
		}
	}
	return true
}
