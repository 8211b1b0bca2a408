// Package loop runs one function after each kick, and never twice at once.
// A kick carries no content: the function reads everything again. The package does
// not depend on the function.
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
	// Sync runs once for every burst of kicks. It returns the time until it must run again without a kick, 0 for
	// the slow tick. After an error Sync runs again; the Loop logs an error that differs from the last one.
	Sync func(context.Context) (again time.Duration, err error)
	// MinInterval is the least time between the starts of two runs; default 0. The first
	// run after a quiet time starts at once, since a failover must not wait.
	MinInterval time.Duration
	// RetryInterval is the wait after a failed run; it doubles up to MaxRetryInterval. Default 200 ms.
	RetryInterval time.Duration
	// MaxRetryInterval defaults to 10 s.
	MaxRetryInterval time.Duration
	// ResyncInterval is the slow tick, which covers changes without an event; default 30 s.
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
func (l *Loop) Kick() { wake(l.kicks) }

// Hurry asks for a run that skips the pause after a costly run. It is for rare events that must not wait, such as the
// death of a node. It never blocks.
func (l *Loop) Hurry() {
	wake(l.hurry)
	l.Kick()
}

func wake(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default: // a run is pending, and it will read what this kick announces
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

// soonest returns the shorter time; again may be 0 for never.
func soonest(again, other time.Duration) time.Duration {
	if again <= 0 {
		return other
	}
	return min(again, other)
}

// pause returns the pause after a run.
func (l *Loop) pause(cost time.Duration) time.Duration {
	return max(min(max(costFactor*cost, leastPause), mostPause), l.config.MinInterval-cost)
}

// sleep blocks until a kick, or until wait is over, but at least for the pause, unless Hurry cuts that short. It returns
// false when ctx has ended.
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
		case <-signal: // the next run reads what a kick during the pause announces
		default:
		}
	}
	return true
}
