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
	o.maintain(ctx)
	watching.Wait()
	return nil
}

// maintain audits after a kick and periodically, and retries after a failure.
func (o *Owned[I]) maintain(ctx context.Context) {
	audit := time.NewTicker(o.AuditInterval)
	defer audit.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
			o.Audit()
			// Limit the rate: another program may undo each repair at once.
			Sleep(ctx, retryInterval)
		case <-audit.C:
			o.Audit()
		case <-o.retryTimer():
			o.retry()
		}
	}
}

// retryTimer returns a channel that receives at the time of the next attempt; nil if the last attempt succeeded.
func (o *Owned[I]) retryTimer() <-chan time.Time {
	o.Lock()
	defer o.Unlock()
	if o.failure == nil {
		return nil
	}

	return time.After(time.Until(o.retryAt))
}

// retry makes another attempt after a failure, if it is due.
func (o *Owned[I]) retry() {
	o.Lock()
	defer o.Unlock()
	if o.active && o.failure != nil && !time.Now().Before(o.retryAt) {
		_ = o.apply() // it logs
	}
}

// Audit compares the table with the image, replaces it if it differs, and reports whether it differed. It lists the
// table without the lock, so Apply does not wait for it. An Apply in the meantime makes the listing useless, and causes
// another audit.
func (o *Owned[I]) Audit() (differed bool) {
	o.Lock()
	defer o.Unlock()
	// A listing may miss elements while the kernel resizes a set. So a second listing decides.
	for range 2 {
		if !o.active || o.absent || o.failure != nil {
			return false
		}

		want := o.Image(o.actual)
		if want == o.none {
			return false
		}

		before := o.generation
		o.Unlock()
		found, err := want.Permanent().Read()
		o.Lock()
		if o.generation != before || errors.Is(err, ErrChanged) {
			o.wake.Kick()
			return false
		}

		_, err = o.adopt(want, found, err)
		if err == nil {
			return false
		}

		o.actual = o.none
		if found == nil {
			break // the layout itself differs, or there is no table
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
