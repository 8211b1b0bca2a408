package filter

import (
	"cmp"
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
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
	return Timers{
		CheckInterval: cmp.Or(t.CheckInterval, 30*time.Second),
		AuditInterval: cmp.Or(t.AuditInterval, 10*time.Minute),
		RetryInterval: cmp.Or(t.RetryInterval, 100*time.Millisecond),
	}
}

// Run heals the table until the context ends. The table stays in force then.
func (t *Table) Run(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { t.watch(ctx); return nil })
	tasks.Go(func() error { t.readLog(ctx); return nil })
	tasks.Go(func() error { t.repairLoop(ctx); return nil })
	tasks.Go(func() error { t.watchFailed(ctx); return nil })
	return tasks.Wait()
}

// failedInterval is between looks at whether the table has failed.
const failedInterval = 100 * time.Millisecond

// watchFailed says when the table has failed, or is in force again.
func (t *Table) watchFailed(ctx context.Context) {
	tick := time.NewTicker(failedInterval)
	defer tick.Stop()
	for failed := false; t.changed != nil; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if now := t.Failed(); now != failed {
				failed = now
				t.changed()
			}
		}
	}
}

// repairLoop repairs when it is told to, and looks by itself now and then.
func (t *Table) repairLoop(ctx context.Context) {
	check, audit := time.NewTicker(t.timers.CheckInterval), time.NewTicker(t.timers.AuditInterval)
	defer check.Stop()
	defer audit.Stop()
	for {
		var done outcome
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
			done = t.repair(nft.Change(t.damage.Swap(0)))
		case <-check.C:
			done = t.repair(nft.Missed)
		case <-audit.C:
			done = t.repair(nft.Elements)
		}
		if done != unchanged {
			// Somebody may undo at once what we repair: not a contest at full speed.
			sleep(ctx, t.timers.RetryInterval)
		}
		if done == failed {
			t.kick()
		}
	}
}

// watch tells heal of changes to the table that are not ours, until the context ends.
func (t *Table) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := ours().Watch(ctx, &t.conn, t.noteDamage); err != nil {
			t.log.Warn("changes of nf_tables are not heard", "error", err)
			sleep(ctx, t.timers.RetryInterval)
		}
	}
}

// noteDamage notes damage and wakes heal.
func (t *Table) noteDamage(d nft.Change) {
	for {
		was := t.damage.Load()
		if int32(d) <= was || t.damage.CompareAndSwap(was, int32(d)) {
			break
		}
	}
	t.kick()
}

// sleep waits, or until the context ends.
func sleep(ctx context.Context, d time.Duration) {
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
	// unchanged: nothing was to be done.
	unchanged outcome = iota
	repaired
	failed
	// undecided: what is there was not seen as a whole; heal is awake to look again.
	undecided
)

// repair makes the kernel hold what is desired again, after damage of a kind.
func (t *Table) repair(d nft.Change) outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.desired == nil {
		return unchanged
	}
	if d < nft.Rules && t.actual != nil {
		if now, err := t.layout.Handle(); err != nil || now != t.handle {
			d = nft.Rules
		}
	}
	if d < nft.Rules {
		// What lies about is not to be taken for damage.
		t.sweep()
	}
	was := t.generation
	switch {
	case !t.enforced:
	case d == nft.Rules:
		t.distrust()
		t.closeRestricted()
	case d == nft.Elements:
		return t.audit()
	default:
		return unchanged
	}
	return t.finishRepair(was, t.apply())
}

// audit compares all that the table holds with what it is to hold, and puts right what differs. It lets go of the
// lock while it lists and compares: Set does not wait for it. If something was set meanwhile, the listing shows
// neither what was nor what is, and there is another audit later.
func (t *Table) audit() outcome {
	was, desired, log := t.generation, *t.desired, !t.noLog
	t.mu.Unlock()
	want, err := newImage(desired, log)
	var c change
	if err == nil {
		c, err = want.changeFromKernel(want.layout.table())
	}
	t.mu.Lock()
	if t.generation != was || errors.Is(err, nft.ErrChanged) {
		t.noteDamage(nft.Elements)
		return undecided
	}
	if err == nil {
		err = t.takeOver(want, &c)
	}
	if err != nil {
		t.logNotAdopted(err)
		t.distrust()
		err = t.apply()
	}
	return t.finishRepair(was, err)
}

// finishRepair says what became of a repair that began at a generation.
func (t *Table) finishRepair(was uint64, err error) outcome {
	if err != nil {
		if !t.failureLogged {
			t.log.Error("filter cannot be repaired", "error", err)
		}
		t.failureLogged = true
		return failed
	}
	t.failureLogged = false
	if t.generation == was {
		return unchanged
	}
	t.repairs.Add(1)
	t.log.Warn("filter repaired")
	return repaired
}

// manyFrontends is how many frontends take longer to build than an address with ranges may be open.
const manyFrontends = 500

// closeRestricted closes the addresses with ranges, if the table is gone and takes its time to be built.
func (t *Table) closeRestricted() {
	if _, err := ours().Handle(); len(t.desired.Frontends) < manyFrontends || !errors.Is(err, os.ErrNotExist) {
		return
	}
	var closed Desired
	for _, d := range t.desired.Frontends {
		if a := d.Address.Unmap(); d.HasRanges() && a.IsValid() {
			closed.Guarded = append(closed.Guarded, lb.Range{From: a, To: a})
		}
	}
	img, err := newImage(closed, !t.noLog)
	if err == nil {
		err = t.replace(img)
	}
	if err != nil {
		t.log.Warn("addresses with ranges cannot be shut", "error", err)
	}
	t.distrust()
}
