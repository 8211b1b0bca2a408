package daemon

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

// loop is a Loop under test on virtual time.
type loop struct {
	*Loop
	start time.Time
	// runs are the starts of Sync.
	runs []time.Duration
	mu   sync.Mutex
	acts behavior
	// spent is the processor time of all runs.
	spent time.Duration
}

// behavior is the processor time of Sync, the time that it waits besides, and its results.
type behavior struct {
	cost, waits, again time.Duration
	err                error
}

// run runs script on a Loop, and returns the starts of the runs.
func run(t *testing.T, c LoopConfig, script func(*loop)) []time.Duration {
	t.Helper()
	l := &loop{}
	synctest.Test(t, func(t *testing.T) {
		l.start = time.Now()
		c.Name, c.Log = "test", slog.New(slog.DiscardHandler)
		c.Sync = func(context.Context) (time.Duration, error) {
			l.mu.Lock()
			acts := l.acts
			l.mu.Unlock()
			l.runs = append(l.runs, time.Since(l.start))
			time.Sleep(acts.cost + acts.waits)
			l.spent += acts.cost
			return acts.again, acts.err
		}
		l.Loop = NewLoop(c)
		l.Loop.processorTime = func() time.Duration { return l.spent }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()
		script(l)
		cancel()
		must(t, <-ended)
	})
	return l.runs
}

// at waits until d after the start.
func (l *loop) at(d time.Duration) {
	time.Sleep(d - time.Since(l.start))
	synctest.Wait()
}

// behave sets how Sync behaves from then on.
func (l *loop) behave(b behavior) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acts = b
}

// twice kicks a second after the start, and again during that run, or soon after it.
func twice(b behavior) func(*loop) {
	return func(l *loop) {
		l.at(1000 * ms)
		l.behave(b)
		l.Kick()
		l.at(1001 * ms)
		l.Kick()
		l.at(2000 * ms)
	}
}

func TestLoop(t *testing.T) {
	for name, tt := range map[string]struct {
		config LoopConfig
		script func(*loop)
		want   []time.Duration
	}{
		"after a quiet time at once, then after a pause, once for all kicks": {LoopConfig{}, func(l *loop) {
			l.at(1000 * ms)
			l.Kick()
			l.at(1001 * ms)
			l.Kick()
			l.Kick()
			l.at(2000 * ms)
		}, []time.Duration{0, 1000 * ms, 1005 * ms}},
		"the pause is ten times what the run took, less a second of the quiet time before it": {LoopConfig{}, func(l *loop) {
			l.at(3000 * ms)
			l.behave(behavior{cost: 110 * ms})
			l.Kick()
			l.at(3001 * ms)
			l.Kick()
			l.at(4000 * ms)
		}, []time.Duration{0, 3000 * ms, 3210 * ms}},
		"a change in parts does not wait, a lasting change does": {LoopConfig{}, func(l *loop) {
			l.at(3000 * ms)
			l.behave(behavior{cost: 40 * ms})
			for _, kick := range []time.Duration{3000, 3001, 3050, 3100, 3250} {
				l.at(kick * ms)
				l.Kick()
			}
			l.at(5000 * ms)
		}, []time.Duration{0, 3000 * ms, 3045 * ms, 3090 * ms, 3240 * ms, 3640 * ms}},
		"there is no quiet time before the first run": {LoopConfig{}, func(l *loop) {
			l.behave(behavior{cost: 20 * ms})
			l.at(1 * ms)
			l.Kick()
			l.at(1000 * ms)
		}, []time.Duration{0, 200 * ms}},
		"four times as long in a burst, but not before the first run, nor against a hurry": {LoopConfig{Burst: func() bool {
			return true
		}}, func(l *loop) {
			l.at(1000 * ms)
			l.behave(behavior{cost: 30 * ms})
			l.Kick()
			l.at(1001 * ms)
			l.Kick()
			l.at(1900 * ms)
			l.Hurry()
			l.at(2000 * ms)
		}, []time.Duration{0, 1000 * ms, 1230 * ms, 1900 * ms}},
		"as long as the burst factor says": {LoopConfig{Burst: func() bool {
			return true
		}, BurstFactor: 50}, twice(behavior{cost: 30 * ms}),
			[]time.Duration{0, 1000 * ms, 1530 * ms}},
		"no longer without a burst": {LoopConfig{Burst: func() bool {
			return false
		}}, twice(behavior{cost: 30 * ms}), []time.Duration{0, 1000 * ms, 1035 * ms}},
		"a run that waits for others costs nothing": {LoopConfig{}, twice(behavior{cost: 110 * ms, waits: 300 * ms}),
			[]time.Duration{0, 1000 * ms, 1510 * ms}},
		"and a second at most": {LoopConfig{}, func(l *loop) {
			l.behave(behavior{cost: 500 * ms})
			l.at(10 * ms)
			l.Kick()
			l.at(4000 * ms)
		}, []time.Duration{0, 1500 * ms}},
		"hurry cuts the pause short": {LoopConfig{}, func(l *loop) {
			l.behave(behavior{cost: 100 * ms})
			l.at(2000 * ms)
			l.Kick()
			l.at(2200 * ms)
			l.Hurry()
			l.at(2301 * ms)
			l.Hurry()
			l.at(9000 * ms)
		}, []time.Duration{0, 2000 * ms, 2200 * ms, 2305 * ms}},
		"the minimum interval is between starts": {LoopConfig{MinInterval: 100 * ms}, func(l *loop) {
			l.behave(behavior{cost: 2 * ms})
			l.at(10 * ms)
			l.Kick()
			l.at(1000 * ms)
		}, []time.Duration{0, 100 * ms}},
		"a failed run is tried again, less and less often": {LoopConfig{}, func(l *loop) {
			l.behave(behavior{err: errors.New("no")})
			l.at(700 * ms)
			l.behave(behavior{})
			l.at(3000 * ms)
		}, []time.Duration{0, 200 * ms, 600 * ms, 1400 * ms}},
		"it runs again when Sync asks for it": {LoopConfig{}, func(l *loop) {
			l.behave(behavior{again: 300 * ms})
			l.at(500 * ms)
			l.behave(behavior{})
			l.at(29 * time.Second)
		}, []time.Duration{0, 300 * ms, 600 * ms}},
		"the slow tick": {LoopConfig{}, func(l *loop) { l.at(31 * time.Second) }, []time.Duration{0, 30 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := run(t, tt.config, tt.script); !slices.Equal(got, tt.want) {
				t.Errorf("runs at %v, want %v", got, tt.want)
			}
		})
	}
}

func TestCompleted(t *testing.T) {
	var l *loop
	run(t, LoopConfig{}, func(under *loop) {
		l = under
		l.at(ms)
		l.behave(behavior{err: errors.New("no")})
		l.Kick()
		l.at(100 * ms)
	})
	if l.Completed() != 1 {
		t.Errorf("Completed = %d, want the run without an error alone", l.Completed())
	}
}
