package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A run is followed by a pause. The pause is a multiple of the processor time of the run: a loop takes at most a tenth
// of a core, and less in a burst. Time in which a run waits for the API server does not lengthen its pause.
//
// Idle time before a run, up to maxPause, shortens the pauses after it. A new Service gets its address and its
// endpoints one after the other, and must not wait in between.
const (
	costFactor  = 10
	burstFactor = 40

	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// The wait after a failed run starts at firstRetry and doubles up to lastRetry.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// LoopConfig configures a Loop. Zero durations take the defaults.
type LoopConfig struct {
	// Name appears in log lines.
	Name string
	Log  *slog.Logger
	// Sync runs once for every burst of kicks. It returns the time after which it must run again without a kick; 0
	// leaves that to ResyncInterval. After an error Sync is retried. The Loop logs an error that differs from the last.
	Sync func(context.Context) (again time.Duration, err error)
	// MinInterval is the minimum time between the starts of two runs; default 0. A run after a longer idle time starts
	// at once, since a failover must not wait.
	MinInterval time.Duration
	// Burst, unless nil, reports whether many changes are arriving, so that the next run should wait for more of them.
	// The loop then takes at most 1/BurstFactor of a core.
	Burst func() bool
	// BurstFactor has the default 40.
	BurstFactor int
	// ResyncInterval is the maximum time between two runs, which covers changes without an event; default 30 s.
	ResyncInterval time.Duration
}

// Loop runs one function after each kick, and never twice at once. A kick carries no content: the function reads
// everything again.
type Loop struct {
	config       LoopConfig
	kicks, hurry chan struct{}
	completed    atomic.Int64
	// began is the start of the present run; nil between runs.
	began atomic.Pointer[time.Time]
	// processorTime returns the processor time that this process has used. Other goroutines use it too, so its increase
	// during a run is an upper bound for the cost of the run.
	processorTime func() time.Duration
}

// NewLoop returns a Loop. It does nothing until Run is called.
func NewLoop(c LoopConfig) *Loop {
	c.BurstFactor = cmp.Or(c.BurstFactor, burstFactor)
	c.ResyncInterval = cmp.Or(c.ResyncInterval, 30*time.Second)
	return &Loop{
		config:        c,
		kicks:         make(chan struct{}, 1),
		hurry:         make(chan struct{}, 1),
		processorTime: processorTime,
	}
}

// Kick requests a run. It never blocks.
func (l *Loop) Kick() { wake(l.kicks) }

// Hurry requests a run that skips the pause after the previous run. It is for rare events that must not wait, such as
// the death of a node. It never blocks.
func (l *Loop) Hurry() {
	wake(l.hurry)
	l.Kick()
}

func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // a run is pending, and will read the change behind this signal
	}
}

// Completed returns the number of runs that ended without an error.
func (l *Loop) Completed() int64 { return l.completed.Load() }

// Began returns the start of the present run, or the zero Time between runs.
func (l *Loop) Began() time.Time {
	began := l.began.Load()
	if began == nil {
		return time.Time{}
	}
	return *began
}

// Run runs the function once, then after every burst of kicks, until ctx is cancelled. It always returns nil.
func (l *Loop) Run(ctx context.Context) error {
	var logged string
	retry := firstRetry
	pausesEnd := time.Now() // the end of the pauses after all runs so far

	for {
		start, processorStart := time.Now(), l.processorTime()
		l.began.Store(&start)
		again, err := l.config.Sync(ctx)
		l.began.Store(nil)
		took := time.Since(start)
		cost := min(took, l.processorTime()-processorStart)

		switch {
		case err == nil:
			l.completed.Add(1)
			logged, retry = "", firstRetry
		case ctx.Err() == nil:
			if err.Error() != logged {
				logged = err.Error()
				l.config.Log.Error("sync failed, will retry", "loop", l.config.Name, "error", err)
			}
			again = Sooner(again, retry)
			retry = min(2*retry, lastRetry)
		}

		end := start.Add(took)
		pause := l.pause(pausesEnd.Sub(end), cost)
		pausesEnd = end.Add(pause)

		wait := Sooner(again, l.config.ResyncInterval)
		if !l.sleep(ctx, wait, max(pause, l.config.MinInterval-took)) {
			return nil
		}
	}
}

// Sooner returns the shorter of two times to run again; 0 means never.
func Sooner(a, b time.Duration) time.Duration {
	if a <= 0 || b > 0 && b < a {
		return b
	}
	return a
}

// pause returns the pause after a run that used cost of processor time. left is the time until the pauses of earlier
// runs end; it is negative after an idle time.
func (l *Loop) pause(left, cost time.Duration) time.Duration {
	factor := time.Duration(costFactor)
	if l.config.Burst != nil && l.config.Burst() {
		factor = time.Duration(l.config.BurstFactor)
	}
	return min(max(left, -maxPause)+factor*cost, maxPause)
}

// processorTime returns the processor time of this process (getrusage(2)).
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(fmt.Sprintf("getrusage: %v", err)) // it fails only for invalid arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sleep blocks until a kick or until wait is over, but at least for the pause. Hurry cuts the pause short, to minPause.
// sleep returns false if ctx has ended.
func (l *Loop) sleep(ctx context.Context, wait, pause time.Duration) bool {
	waited, minPaused, paused := time.After(wait), time.After(minPause), time.After(pause)

	select {
	case <-ctx.Done():
		return false
	case <-waited:
	case <-l.kicks:
	}

	select {
	case <-ctx.Done():
		return false
	case <-minPaused:
	}

	select {
	case <-ctx.Done():
		return false
	case <-paused:
	case <-l.hurry:
	}

	// The next run also reads the changes behind signals that came during the pause.
	for _, c := range []chan struct{}{l.kicks, l.hurry} {
		select {
		case <-c:
		default:
		}
	}
	return true
}
