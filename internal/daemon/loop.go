package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The pause after a run is a multiple of what the run took of the processors, so that a loop takes a tenth of a core at
// most, less in a burst, within these bounds. A run that waits for the API server is no reason to let the next one
// wait. A quiet time of up to mostPause counts for the pauses after it: a new Service gets its address and its
// endpoints one after the other, and must not wait between them.
const (
	costFactor, burstFactor = 10, 40

	leastPause = 5 * time.Millisecond
	mostPause  = time.Second

	// firstRetry is the wait after a failed run, which doubles up to lastRetry.
	firstRetry = 200 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// LoopConfig of a Loop. Zero durations take the defaults.
type LoopConfig struct {
	// Name appears in log lines.
	Name string
	Log  *slog.Logger
	// Sync runs once for every burst of kicks. It returns the time until it must run again without a kick, 0 for
	// the slow tick. After an error Sync runs again; the Loop logs an error that differs from the last one.
	Sync func(context.Context) (again time.Duration, err error)
	// MinInterval is the least time between the starts of two runs; default 0. The first
	// run after a quiet time starts at once, since a failover must not wait.
	MinInterval time.Duration
	// Burst, unless nil, reports whether so much changes that the next run should take more of it at once: the loop
	// takes a BurstFactor-th of a core then; default 40.
	Burst       func() bool
	BurstFactor int
	// ResyncInterval is the slow tick, which covers changes without an event; default 30 s.
	ResyncInterval time.Duration
}

// Loop runs one function after each kick, and never twice at once. A kick carries no content: the function reads
// everything again.
type Loop struct {
	config       LoopConfig
	kicks, hurry chan struct{}
	done         atomic.Int64
	// began is when the present run began; nil while there is none.
	began atomic.Pointer[time.Time]
	// spent returns the processor time of this process so far. Other goroutines spend it too, so that what a run costs
	// is at most the difference, and at most the time that it takes.
	spent func() time.Duration
}

// NewLoop returns a Loop that Run starts.
func NewLoop(c LoopConfig) *Loop {
	c.BurstFactor = cmp.Or(c.BurstFactor, burstFactor)
	c.ResyncInterval = cmp.Or(c.ResyncInterval, 30*time.Second)
	return &Loop{config: c, kicks: make(chan struct{}, 1), hurry: make(chan struct{}, 1), spent: processorTime}
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

// Began returns when the present run began; the zero Time while there is none.
func (l *Loop) Began() time.Time {
	if began := l.began.Load(); began != nil {
		return *began
	}
	return time.Time{}
}

// Run runs the function once, then for every burst of kicks, until ctx is cancelled. It returns nil.
func (l *Loop) Run(ctx context.Context) error {
	var logged string
	retry := firstRetry
	rested := time.Now() // when the pauses of all runs so far are over
	for {
		started, spent := time.Now(), l.spent()
		l.began.Store(&started)
		again, err := l.config.Sync(ctx)
		l.began.Store(nil)
		took := time.Since(started)
		cost := min(took, l.spent()-spent)
		switch {
		case err == nil:
			l.done.Add(1)
			logged, retry = "", firstRetry
		case ctx.Err() == nil:
			if err.Error() != logged {
				logged = err.Error()
				l.config.Log.Error("sync failed, will retry", "loop", l.config.Name, "error", err)
			}
			again = Sooner(again, retry)
			retry = min(2*retry, lastRetry)
		}
		now := started.Add(took)
		pause := l.pause(rested.Sub(now), cost)
		rested = now.Add(pause)
		if !l.sleep(ctx, Sooner(again, l.config.ResyncInterval), max(pause, l.config.MinInterval-took)) {
			return nil
		}
	}
}

// Sooner returns the shorter of two times to run again; 0 is never.
func Sooner(a, b time.Duration) time.Duration {
	if a <= 0 || b > 0 && b < a {
		return b
	}
	return a
}

// pause returns the pause after a run that cost so much of the processors, given what is left of the pauses before it:
// less than nothing after a quiet time.
func (l *Loop) pause(left, cost time.Duration) time.Duration {
	factor := time.Duration(costFactor)
	if l.config.Burst != nil && l.config.Burst() {
		factor = time.Duration(l.config.BurstFactor)
	}
	return min(max(left, -mostPause)+factor*cost, mostPause)
}

// processorTime returns the processor time of this process (getrusage(2)).
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(fmt.Sprintf("getrusage: %v", err)) // only a bad argument fails
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sleep blocks until a kick, or until wait is over, but at least for the pause, unless Hurry cuts that short. It
// returns false when ctx has ended.
func (l *Loop) sleep(ctx context.Context, wait, pause time.Duration) bool {
	due, least, rest := time.After(wait), time.After(leastPause), time.After(pause)
	select {
	case <-ctx.Done():
		return false
	case <-due:
	case <-l.kicks:
	}
	select {
	case <-ctx.Done():
		return false
	case <-least:
	}
	select {
	case <-ctx.Done():
		return false
	case <-rest:
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

// WitnessInterval returns how often what is remembered is compared with what is computed from nothing: the usual
// interval, or HOLDFAST_WITNESS of the environment, in tests on a cluster.
func WitnessInterval(usual time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv("HOLDFAST_WITNESS")); err == nil && d > 0 {
		return d
	}
	return usual
}
