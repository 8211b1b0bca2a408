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

// Config of a Loop. Zero durations take the defaults.
type Config struct {
	// Name appears in log lines.
	Name string
	Log  *slog.Logger
	// Sync is run for every burst of kicks. Its error is logged when it changes, and Sync runs again.
	Sync func(context.Context) error
	// MinInterval is the least time between the starts of two runs; default 100 ms. The first
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
	config Config
	kicks  chan struct{}
	done   atomic.Int64
}

// New returns a Loop that Run starts.
func New(c Config) *Loop {
	defaults := []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.MinInterval, 100 * time.Millisecond},
		{&c.RetryInterval, 200 * time.Millisecond},
		{&c.MaxRetryInterval, 10 * time.Second},
		{&c.ResyncInterval, 30 * time.Second},
	}
	for _, d := range defaults {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	return &Loop{config: c, kicks: make(chan struct{}, 1)}
}

// Kick asks for a run. It never blocks.
func (l *Loop) Kick() {
	select {
	case l.kicks <- struct{}{}:
	default: // a run is already asked for, and it will see what this kick is about
	}
}

// Done counts the runs that ended without an error.
func (l *Loop) Done() int64 { return l.done.Load() }

// Run runs the function once, then for every burst of kicks, until ctx is cancelled. It returns nil.
func (l *Loop) Run(ctx context.Context) error {
	var said string
	retry := l.config.RetryInterval
	for {
		started := time.Now()
		wait := l.config.ResyncInterval
		if err := l.config.Sync(ctx); err == nil {
			l.done.Add(1)
			said, retry = "", l.config.RetryInterval
		} else if ctx.Err() == nil {
			if err.Error() != said {
				said = err.Error()
				l.config.Log.Error("sync failed, will retry", "loop", l.config.Name, "error", err)
			}
			wait, retry = retry, min(2*retry, l.config.MaxRetryInterval)
		}
		if !l.sleep(ctx, started, wait) {
			return nil
		}
	}
}

// sleep returns when the next run is due: after a kick, or after wait, but not
// before MinInterval has passed since the last start. It reports false when ctx ended.
func (l *Loop) sleep(ctx context.Context, started time.Time, wait time.Duration) bool {
	due := time.NewTimer(wait)
	defer due.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-due.C:
	case <-l.kicks:
	}
	pause := time.NewTimer(l.config.MinInterval - time.Since(started))
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-pause.C:
	}
	select {
	case <-l.kicks: // came during the pause: the run that starts now sees what it is about
	default:
	}
	return true
}
