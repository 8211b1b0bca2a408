package filter

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Timers of a Table; a zero field means its default.
type Timers struct {
	// CheckInterval is how often it is asked unasked whether the table is ours still.
	CheckInterval time.Duration
	// AuditInterval is how often all that the table holds is compared with what it is to hold.
	AuditInterval time.Duration
	// RetryInterval is the wait after the kernel refused what is desired.
	RetryInterval time.Duration
}

func (t Timers) withDefaults() Timers {
	if t.CheckInterval == 0 {
		t.CheckInterval = 30 * time.Second
	}
	if t.AuditInterval == 0 {
		t.AuditInterval = 10 * time.Minute
	}
	if t.RetryInterval == 0 {
		t.RetryInterval = 100 * time.Millisecond
	}
	return t
}

// damage is what may have happened to the table.
type damage int

const (
	// unharmed: nothing that we know of.
	unharmed damage = iota
	// doubtful: notifications were lost.
	doubtful
	// edited: somebody changed the members of its sets.
	edited
	// broken: somebody changed its rules, or it is gone.
	broken
)

// Run heals the table until the context ends. The table stays in force then.
func (t *Table) Run(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { t.watch(ctx); return nil })
	tasks.Go(func() error { t.readLog(ctx); return nil })
	tasks.Go(func() error { t.heal(ctx); return nil })
	return tasks.Wait()
}

// heal repairs when it is told to, and looks by itself now and then.
func (t *Table) heal(ctx context.Context) {
	check, audit := time.NewTicker(t.timers.CheckInterval), time.NewTicker(t.timers.AuditInterval)
	defer check.Stop()
	defer audit.Stop()
	for {
		var done outcome
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
			done = t.repair(damage(t.damage.Swap(int32(unharmed))))
		case <-check.C:
			done = t.repair(doubtful)
		case <-audit.C:
			done = t.repair(edited)
		}
		if done != fine {
			// Somebody may undo at once what we repair: not a contest at full speed.
			rest(ctx, t.timers.RetryInterval)
		}
		if done == failed {
			t.kick()
		}
	}
}

// rest waits, or until the context ends.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// outcome is what became of a repair.
type outcome int

const (
	// fine: nothing was to be done.
	fine outcome = iota
	repaired
	failed
)

// repair makes the kernel hold what is desired again.
func (t *Table) repair(d damage) outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.desired == nil {
		return fine
	}
	if d < broken && t.actual != nil {
		if now, err := handle(); err != nil || now != t.handle {
			d = broken
		}
	}
	if d < broken {
		// What lies about is not to be taken for damage.
		t.sweep()
	}
	was := t.commits
	switch {
	case !t.enforced:
	case d == broken:
		t.forget()
		t.shut()
	case d == edited:
		t.actual = nil
	default:
		return fine
	}
	if err := t.apply(); err != nil {
		if !t.complained {
			t.log.Error("filter cannot be repaired", "err", err)
		}
		t.complained = true
		return failed
	}
	t.complained = false
	if t.commits == was {
		return fine
	}
	t.counts.repairs.Add(1)
	t.log.Warn("filter repaired")
	return repaired
}

// many is how many doors take longer to build than an address with ranges may be open.
const many = 500

// shut closes the addresses with ranges, if the table is gone and takes its time to be built.
func (t *Table) shut() {
	if _, err := handle(); len(t.desired.Doors) < many || !errors.Is(err, os.ErrNotExist) {
		return
	}
	var closed Desired
	for _, d := range t.desired.Doors {
		if a := d.Address.Unmap(); d.HasRanges() && a.IsValid() {
			closed.Guarded = append(closed.Guarded, lb.Range{From: a, To: a})
		}
	}
	img, err := newImage(closed, !t.noLog)
	if err == nil {
		err = t.replace(img)
	}
	if err != nil {
		t.log.Warn("addresses with ranges cannot be shut", "err", err)
	}
	t.forget()
}
