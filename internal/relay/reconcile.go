package relay

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// table is one family's table in the kernel.
type table struct {
	family *family
	*nft.Layout
	conn nft.Conn
	// changed: others may have changed the table since the last check.
	changed atomic.Bool
	status
}

// status is the known state of a table.
type status struct {
	// generation increases with every transaction.
	generation uint64
	// actual is the known content of the kernel's table, but for what expired since; nil while it is unknown.
	actual content
	// course of each desired relay, by the key of its address.
	course map[string]course
	// absent: the table does not exist and is not needed yet.
	absent bool
	// audited is when the table was last compared with desired.
	audited time.Time
	// err is the error of the last reconciliation, failed its time, and failures the number of errors in a row.
	err      error
	failed   time.Time
	failures int
}

func newStatus() status { return status{course: map[string]course{}} }

// Run keeps the relays in force until the context ends. They then stay in force, except for those with an end: the next
// process would not know it.
func (r *Relayer) Run(ctx context.Context) error {
	check := time.NewTicker(r.timers.CheckInterval)
	defer check.Stop()
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return each(ctx, r.wake, r.apply) })
	tasks.Go(func() error { return each(ctx, check.C, r.check) })
	for _, t := range r.tables {
		tasks.Go(func() error { r.watch(ctx, t); return nil })
	}
	err := tasks.Wait()
	r.removeEnding()
	return errors.Join(err, r.close())
}

// watch notes changes of a table by others, until the context ends.
func (r *Relayer) watch(ctx context.Context, t *table) {
	for ctx.Err() == nil {
		if err := t.Watch(ctx, &t.conn, func(nft.Change) { t.changed.Store(true) }); err != nil {
			r.log.Warn("cannot watch changes of nf_tables", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(r.timers.RetryInterval):
			}
		}
	}
}

// close closes the connections to the kernel.
func (r *Relayer) close() (err error) {
	r.kernel.Lock()
	defer r.kernel.Unlock()
	for _, t := range r.tables {
		err = errors.Join(err, t.conn.Close())
	}
	return err
}

// each calls fn for each value from a channel, until the context ends.
func each[T any](ctx context.Context, from <-chan T, fn func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-from:
			fn()
		}
	}
}

// removeEnding removes the relays with an end.
func (r *Relayer) removeEnding() {
	r.mu.Lock()
	if d := r.desired; d != nil {
		stays := *d
		stays.Relays = slices.DeleteFunc(slices.Clone(d.Relays), func(one lb.Relay) bool { return !one.Until.IsZero() })
		r.desired = &stays
	}
	r.mu.Unlock()
	r.apply()
}

// apply makes the kernel's tables equal to desired, on the assumption that they still equal actual.
func (r *Relayer) apply() {
	r.kernel.Lock()
	defer r.kernel.Unlock()
	r.mu.Lock()
	desired, tried := r.desired, r.tried
	r.mu.Unlock()
	if desired == nil {
		return
	}
	indexes := r.indexes()
	for _, t := range r.tables {
		r.reconcileAndLog(t, desired, indexes, nil)
	}
	r.publishEnded()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tried == tried && tried != nil {
		select {
		case <-tried:
		default:
			close(tried)
		}
	}
}

// indexes returns the indexes of the links that may carry relays, by name.
func (r *Relayer) indexes() map[string]int {
	out := map[string]int{}
	for _, l := range r.links() {
		if l.CanAnnounce() {
			out[l.Name] = l.Index
		}
	}
	return out
}

// check audits the tables that others changed, those whose last reconciliation failed, and each from time to time: then it
// learns which relays ended.
func (r *Relayer) check() {
	for _, t := range r.tables {
		r.kernel.Lock()
		due := t.err != nil || time.Since(t.audited) >= r.timers.AuditInterval
		rests := t.failures >= refusedAfter && time.Since(t.failed) < r.timers.RetryInterval
		r.kernel.Unlock()
		if rests {
			continue
		}
		if t.changed.Swap(false) || due {
			r.audit(t)
		}
	}
}

// audit compares a table with desired. It lists without the lock, so that Set does not wait.
func (r *Relayer) audit(t *table) {
	r.kernel.Lock()
	was := t.generation
	r.kernel.Unlock()
	r.reconcileListed(t, was, t.read())
}

// reconcileListed makes a table equal to desired, given its listing at a generation. The next check makes up for an
// outdated listing.
func (r *Relayer) reconcileListed(t *table, was uint64, seen listing) {
	r.kernel.Lock()
	defer r.kernel.Unlock()
	r.mu.Lock()
	desired := r.desired
	r.mu.Unlock()
	if desired == nil || t.generation != was || errors.Is(seen.err, nft.ErrChanged) {
		t.changed.Store(true)
		return
	}
	t.audited = time.Now()
	r.reconcileAndLog(t, desired, r.indexes(), &seen)
	r.publishEnded()
}

// refusedAfter is the number of failures in a row after which the kernel counts as unable to relay. Fewer may come from
// another program that changes the table during a check.
const refusedAfter = 3

// reconcileAndLog makes a table equal to desired, given its listing, or nil to assume actual. It logs lasting failure once.
func (r *Relayer) reconcileAndLog(t *table, d *Desired, indexes map[string]int, seen *listing) {
	was := t.failures
	repaired, err := t.reconcile(d, indexes, seen, r.timers.IdleTime)
	t.err, t.failures = err, t.failures+1
	if t.failed = time.Now(); err == nil {
		t.failures = 0
	}
	switch {
	case t.failures == refusedAfter:
		r.log.Error("the kernel refuses the relays: connections end when their address moves", "family", t.family.Family.Family, "error", err)
	case err == nil && was >= refusedAfter:
		r.log.Info("connections are relayed again", "family", t.family.Family.Family)
	}
	if repaired {
		r.repairs.Add(1)
		r.log.Warn("relays repaired", "family", t.family.Family.Family)
	}
}

// reconcile makes the kernel's table equal to desired, and reports whether others had damaged it.
func (t *table) reconcile(d *Desired, indexes map[string]int, seen *listing, idle time.Duration) (repaired bool, err error) {
	if t.actual != nil && seen == nil {
		want := t.content(d, indexes, idle)
		if t.change(t.actual, want) == nil {
			t.actual = want
			t.begun()
			return false, nil
		}
	}
	if t.absent && seen == nil && !d.needs(t.family) {
		return false, nil
	}
	if seen == nil {
		now := t.read()
		seen = &now
	}
	there := seen.err == nil
	if !there && !errors.Is(seen.err, os.ErrNotExist) && !errors.Is(seen.err, nft.ErrOther) {
		return false, seen.err
	}
	if t.absent = !there && t.actual == nil && !d.needs(t.family); t.absent {
		return false, nil // no relays yet: no table is needed
	}
	t.learn(seen, time.Now())
	repaired = t.actual != nil && (!there || t.damaged(seen.is))
	want := t.content(d, indexes, idle)
	if there {
		err = t.change(seen.is, want)
	} else {
		err = t.build(want)
	}
	if err != nil {
		return false, err
	}
	t.actual = want
	t.begun()
	return repaired, nil
}

// needs reports whether a family's table is needed.
func (d *Desired) needs(f *family) bool {
	return d.Expect || slices.ContainsFunc(d.Relays, func(one lb.Relay) bool { return f.Has(one.Address) && f.Has(one.Via) })
}
