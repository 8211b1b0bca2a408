package filter

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Timers of a Table; a zero field means its default.
type Timers struct {
	// CheckInterval is the time between two checks of whether the table is still the same.
	CheckInterval time.Duration
	// AuditInterval is the time between two comparisons of the table's whole content with the desired one.
	AuditInterval time.Duration
	// RetryInterval is the first wait after the kernel has refused a transaction, and the shortest between two repairs.
	RetryInterval time.Duration
}

func (t Timers) withDefaults() Timers {
	return Timers{
		CheckInterval: cmp.Or(t.CheckInterval, 30*time.Second),
		AuditInterval: cmp.Or(t.AuditInterval, 10*time.Minute),
		RetryInterval: cmp.Or(t.RetryInterval, 100*time.Millisecond),
	}
}

// Run repairs the table until the context ends. The table then stays in force.
func (t *Table) Run(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { t.watch(ctx); return nil })
	tasks.Go(func() error { t.readLog(ctx); return nil })
	tasks.Go(func() error { t.repairLoop(ctx); return nil })
	tasks.Go(func() error { t.watchFailed(ctx); return nil })
	return tasks.Wait()
}

// failedInterval is the time between two checks of Failed.
const failedInterval = 100 * time.Millisecond

// watchFailed calls changed when the result of Failed or of Refused changes.
func (t *Table) watchFailed(ctx context.Context) {
	tick := time.NewTicker(failedInterval)
	defer tick.Stop()
	var refused map[lb.Key]error
	for failed := false; t.changed != nil; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			now, closed := t.Failed(), t.Refused()
			same := maps.EqualFunc(closed, refused, func(error, error) bool { return true })
			if now != failed || !same {
				failed, refused = now, closed
				t.changed()
			}
		}
	}
}

// repairLoop repairs after a kick, checks and audits periodically, and asks again for what the kernel refused.
func (t *Table) repairLoop(ctx context.Context) {
	check, audit := time.NewTicker(t.timers.CheckInterval), time.NewTicker(t.timers.AuditInterval)
	defer check.Stop()
	defer audit.Stop()
	for {
		var done outcome
		var retry <-chan time.Time
		if wait, wanted := t.untilRetry(); wanted {
			retry = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
			done = t.repair(nft.Change(t.damage.Swap(0)))
		case <-check.C:
			done = t.repair(nft.Missed)
		case <-audit.C:
			done = t.repair(nft.Elements)
		case <-retry:
			done = t.retry()
		}
		if done != unchanged {
			// Another program may undo each repair at once: limit the rate.
			sleep(ctx, t.timers.RetryInterval)
		}
	}
}

// maxWait is the longest time until the kernel is asked again for what it refused. Each attempt may take as long as the
// whole table.
const maxWait = 5 * time.Minute

// postpone sets the time of the next attempt, each time further away.
func (t *Table) postpone() {
	t.wait = min(max(2*t.wait, t.timers.RetryInterval), maxWait)
	t.retryAt = time.Now().Add(t.wait)
}

// untilRetry returns the time until the next attempt; false if there is nothing to ask for.
func (t *Table) untilRetry() (time.Duration, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failure == nil && len(t.refused) == 0 {
		t.retryAt, t.wait = time.Time{}, 0
	}
	return time.Until(t.retryAt), !t.retryAt.IsZero()
}

// retry asks the kernel again for what it refused, if it is time.
func (t *Table) retry() outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch was := t.generation; {
	case t.desired == nil || time.Now().Before(t.retryAt):
	case t.failure != nil:
		return t.finishRepair(was, t.apply())
	case len(t.refused) > 0:
		t.refused = nil
		if t.apply() != nil {
			return failed
		}
	}
	return unchanged
}

// watch passes changes of the table by others to noteDamage, until the context ends.
func (t *Table) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := ours().Watch(ctx, &t.conn, t.noteDamage); err != nil {
			t.log.Warn("cannot watch changes of nf_tables", "error", err)
			sleep(ctx, t.timers.RetryInterval)
		}
	}
}

// noteDamage records damage and wakes repairLoop.
func (t *Table) noteDamage(d nft.Change) {
	for {
		was := t.damage.Load()
		if int32(d) <= was || t.damage.CompareAndSwap(was, int32(d)) {
			break
		}
	}
	t.kick()
}

// sleep waits for d, or until the context ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// outcome is the result of a repair.
type outcome int

const (
	// unchanged: nothing was to be done.
	unchanged outcome = iota
	repaired
	failed
	// undecided: the listing was inconsistent; repairLoop audits again.
	undecided
)

// repair restores the desired table after damage of a kind.
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
		// Stale elements are not damage.
		t.sweep()
	}
	was := t.generation
	switch {
	case !t.enforced && d < nft.Rules:
		return unchanged // until it is time to retry
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

// audit compares the table's whole content with the desired one, and corrects differences. It unlocks the mutex while it
// lists and compares, so that Set does not wait. If a Set or a transaction happens meanwhile, the listing is useless, and
// another audit follows.
func (t *Table) audit() outcome {
	was := t.generation
	want := newImage(&t.library, t.desired, t.refused, t.actual)
	t.mu.Unlock()
	var c change
	layout := want.layout.table()
	is, err := layout.Read(true)
	if err == nil {
		c, err = want.changeFromContent(is, layout)
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

// finishRepair logs and returns the outcome of a repair that began at a generation.
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

// manyFrontends is the number of frontends from which a rebuild takes longer than addresses with ranges may stay open.
const manyFrontends = 500

// closeRestricted closes the addresses with ranges, if the table is missing and its rebuild takes long.
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
	closed.NoLog = t.desired.NoLog
	if err := t.replace(newImage(&t.library, &closed, nil, nil)); err != nil {
		t.log.Warn("cannot close the addresses with ranges", "error", err)
	}
	t.distrust()
}
