package nft

import (
	"context"
	"errors"
	"time"
)

// Run repairs the table until the context ends. The table then stays in force.
func (o *Owned[I]) Run(ctx context.Context) error {
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		o.watch(ctx, o.Log, &o.conn, o.note)
	}()
	o.keep(ctx)
	<-watched
	return nil
}

// keep repairs after a kick, audits periodically, deletes what was to go later, and asks again for what the kernel refused.
func (o *Owned[I]) keep(ctx context.Context) {
	audit := time.NewTicker(o.AuditInterval)
	defer audit.Stop()
	for {
		done := unchanged
		retry, sweep := o.due()
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
			sleep(ctx, o.RepairDelay)
			done = o.repair(damage(o.worst.Swap(0)))
		case <-audit.C:
			done = o.repair(elements)
		case <-sweep:
			o.Sweep()
		case <-retry:
			done = o.retry()
		}
		if done != unchanged {
			// Another program may undo each repair at once: limit the rate.
			sleep(ctx, o.RetryInterval)
		}
	}
}

// maxWait is the longest time until the kernel is asked again for what it refused. Each attempt may take as long as the
// whole table.
const maxWait = 5 * time.Minute

// postpone sets the time of the next attempt, each time further away.
func (o *Owned[I]) postpone() {
	o.wait = min(max(2*o.wait, o.RetryInterval), maxWait)
	o.retryAt = time.Now().Add(o.wait)
}

// due returns channels that tell when the kernel is to be asked again, and when elements are to be deleted; nil for never.
func (o *Owned[I]) due() (retry, sweep <-chan time.Time) {
	o.Lock()
	defer o.Unlock()
	if o.failure == nil && !o.partly {
		o.retryAt, o.wait = time.Time{}, 0
	}
	if !o.retryAt.IsZero() {
		retry = time.After(time.Until(o.retryAt))
	}
	if len(o.later) > 0 {
		sweep = time.After(o.RetryInterval)
	}
	return retry, sweep
}

// retry asks the kernel again for what it refused, if it is time.
func (o *Owned[I]) retry() outcome {
	o.Lock()
	defer o.Unlock()
	switch before := o.generation; {
	case !o.on || time.Now().Before(o.retryAt):
	case o.failure != nil:
		return o.finish(before, o.apply())
	case o.partly:
		o.partly = false
		o.Again()
		if o.apply() != nil {
			return failed
		}
	}
	return unchanged
}

// Sweep deletes the elements that were to go later.
func (o *Owned[I]) Sweep() {
	o.Lock()
	defer o.Unlock()
	o.sweep()
}

func (o *Owned[I]) sweep() {
	if !o.on || len(o.later) == 0 {
		return
	}
	gone := Change{Remove: o.later}
	o.later = nil
	if err := o.change(o.actual, gone); err != nil {
		o.note(elements) // the table differs from what is known
	}
}

// note records damage and wakes Run.
func (o *Owned[I]) note(d damage) {
	for {
		worst := o.worst.Load()
		if int32(d) <= worst || o.worst.CompareAndSwap(worst, int32(d)) {
			break
		}
	}
	o.kick()
}

// kick wakes Run. It never blocks.
func (o *Owned[I]) kick() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
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
	// undecided: the listing was inconsistent; Run audits again.
	undecided
)

// repair restores the table after damage of a kind.
func (o *Owned[I]) repair(d damage) outcome {
	o.Lock()
	defer o.Unlock()
	var none I
	before := o.generation
	switch {
	case !o.on || d == nothing:
		return unchanged
	case o.failure != nil && d < rules:
		return unchanged // until it is time to retry
	case o.absent && d < rules:
		return unchanged
	}
	if d < rules && o.actual != none {
		if handle, err := o.Handle(); err != nil || handle != o.handle {
			d = rules
		}
	}
	switch d {
	case missed:
		return unchanged
	case elements:
		return o.audit()
	}
	o.actual, o.distrusted, o.absent = none, true, false
	return o.finish(before, o.apply())
}

// Audit compares the table with the image as Run does, and reports whether it differed.
func (o *Owned[I]) Audit() (differed bool) {
	done := o.repair(elements)
	return done == repaired || done == failed
}

// audit compares the table's whole content with the image, and corrects differences. It unlocks the mutex meanwhile, so that
// Apply does not wait. If an Apply or a transaction happens meanwhile, the listing is useless, and another audit follows.
func (o *Owned[I]) audit() outcome {
	var none I
	o.sweep() // what is to go is no damage
	before := o.generation
	want := o.Image(o.actual)
	if want == none {
		return unchanged
	}
	o.Unlock()
	c, err := read(want)
	o.Lock()
	if o.generation != before || errors.Is(err, ErrChanged) {
		o.note(elements)
		return undecided
	}
	if err == nil {
		err = o.takeOver(want, c)
		o.sweep()
	}
	if err == nil && o.Done != nil {
		o.Done(want)
	}
	if err != nil {
		o.Log.Info("table is replaced", "table", o.Name, "reason", err)
		o.actual, o.distrusted = none, true
		err = o.apply()
	}
	return o.finish(before, err)
}

// finish notes the outcome of a repair that began at a generation.
func (o *Owned[I]) finish(before uint64, err error) outcome {
	switch {
	case err != nil:
		return failed
	case o.generation == before:
		return unchanged
	}
	o.repairs.Add(1)
	o.Log.Warn("table repaired", "table", o.Name)
	return repaired
}
