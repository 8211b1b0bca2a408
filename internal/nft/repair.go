package nft

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Run repairs the table until the context ends. The table then stays in force.
func (o *Owned[I]) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	watching.Go(func() { o.watch(ctx, o.Log, o.wake.Kick) })
	o.keep(ctx)
	watching.Wait()
	return nil
}

// keep audits after a kick and periodically, and asks again for what the kernel refused.
func (o *Owned[I]) keep(ctx context.Context) {
	audit := time.NewTicker(o.AuditInterval)
	defer audit.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
			o.Audit()
			// Another program may undo each repair at once: limit the rate.
			Sleep(ctx, retryInterval)
		case <-audit.C:
			o.Audit()
		case <-o.due():
			o.retry()
		}
	}
}

// due returns a channel that reports when the kernel is to be asked again; nil for never.
func (o *Owned[I]) due() <-chan time.Time {
	o.Lock()
	defer o.Unlock()
	if o.failure == nil {
		return nil
	}
	return time.After(time.Until(o.retryAt))
}

// retry asks the kernel again for what it refused, if it is time.
func (o *Owned[I]) retry() {
	o.Lock()
	defer o.Unlock()
	if o.on && o.failure != nil && !time.Now().Before(o.retryAt) {
		_ = o.apply() // it logs
	}
}

// Audit compares the table with the image as Run does, replaces one that differs, and reports whether it differed. It
// reads while the mutex is unlocked, so that Apply does not wait. If an Apply happens meanwhile the listing is useless,
// and another audit follows.
func (o *Owned[I]) Audit() (differed bool) {
	o.Lock()
	defer o.Unlock()
	// A listing while the kernel resizes a set may miss elements: a second one decides.
	for range 2 {
		if !o.on || o.absent || o.failure != nil {
			return false
		}

		want, before := o.Image(o.actual), o.generation
		if want == o.none {
			return false
		}

		o.Unlock()
		found, err := want.Permanent().Read()
		o.Lock()
		if o.generation != before || errors.Is(err, ErrChanged) {
			o.wake.Kick()
			return false
		}

		if _, err = o.compare(want, found, err); err == nil {
			return false
		}

		if o.actual = o.none; found == nil {
			break
		}
	}

	if o.apply() == nil {
		o.repairs.Add(1)
		o.Log.Warn("table repaired", "table", o.Name)
	}

	return true
}

// Sleep waits for d, or until the context ends.
func Sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
