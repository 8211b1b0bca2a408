package relay

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// table is one family's table in the kernel.
type table struct {
	family *family
	*nft.Layout
	status
}

// status is the known state of a table.
type status struct {
	// generation increases with every transaction.
	generation uint64
	// actual is the known content of the kernel's table; nil while it is unknown.
	actual content
	// absent: the table does not exist and is not needed yet.
	absent bool
	// renewed is when the elements were last written.
	renewed time.Time
	// err is the error of the last reconciliation, failed its time, and failures the number of errors in a row.
	err      error
	failed   time.Time
	failures int
}

// Run keeps the relays in force until the context ends. They then stay in force, except for those with an end: the next
// process would not know it.
func (r *Relayer) Run(ctx context.Context) error {
	check := time.NewTicker(r.timers.CheckInterval)
	defer check.Stop()
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return each(ctx, r.wake, r.apply) })
	tasks.Go(func() error { return each(ctx, check.C, r.check) })
	err := tasks.Wait()
	r.removeEnding()
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
		r.reconcileAndLog(t, desired.content(t.family, indexes), desired.Expect, nil)
	}
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

// listing is the result of listing a table.
type listing struct {
	is  content
	err error
}

// check compares the kernel's tables with desired. It lists without the lock, so that Set does not wait.
func (r *Relayer) check() {
	for _, t := range r.tables {
		r.kernel.Lock()
		was := t.generation
		rests := t.failures >= refusedAfter && time.Since(t.failed) < r.timers.RetryInterval
		r.kernel.Unlock()
		if rests {
			continue
		}
		is, err := t.read()
		r.reconcileListed(t, was, listing{is, err})
	}
}

// reconcileListed makes a table equal to desired, given its listing at a generation. It ignores an outdated listing: the
// next check is soon.
func (r *Relayer) reconcileListed(t *table, was uint64, seen listing) {
	r.kernel.Lock()
	defer r.kernel.Unlock()
	r.mu.Lock()
	desired := r.desired
	r.mu.Unlock()
	if desired == nil || t.generation != was || errors.Is(seen.err, nft.ErrChanged) {
		return
	}
	r.reconcileAndLog(t, desired.content(t.family, r.indexes()), desired.Expect, &seen)
}

// refusedAfter is the number of failures in a row after which the kernel counts as unable to relay. Fewer may come from
// another program that changes the table during a check.
const refusedAfter = 3

// reconcileAndLog makes a table equal to want, given its listing, or nil to assume actual. It logs lasting failure once.
func (r *Relayer) reconcileAndLog(t *table, want content, expect bool, seen *listing) {
	was := t.failures
	repaired, err := t.reconcile(want, expect, seen, r.timers.RenewInterval)
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

// reconcile makes the kernel's table equal to want, and reports whether others had damaged it.
func (t *table) reconcile(want content, expect bool, seen *listing, renew time.Duration) (repaired bool, err error) {
	if t.actual != nil && seen == nil && t.change(want) == nil {
		return false, nil
	}
	needed := expect || want.relays() > 0
	if t.absent && !needed {
		return false, nil
	}
	if seen == nil {
		is, err := t.read()
		seen = &listing{is, err}
	}
	is, there := seen.is, seen.err == nil
	if !there && !errors.Is(seen.err, os.ErrNotExist) && !errors.Is(seen.err, nft.ErrOther) {
		return false, seen.err
	}
	if t.absent = !there && t.actual == nil && !needed; t.absent {
		return false, nil // no relays yet: no table is needed
	}
	damaged := t.actual != nil && (!there || !maps.Equal(is, t.actual))
	switch {
	case !there:
		err = t.build(want)
	case !maps.Equal(is, want) || time.Since(t.renewed) >= renew:
		err = t.fill(want)
	default:
		return false, nil
	}
	if err != nil {
		return false, err
	}
	t.actual, t.renewed = want, time.Now()
	return damaged, nil
}

// change makes a table whose content is actual equal to want. It adds new elements first, which takes a tenth of the time
// of fill: fill waits until the kernel has freed the elements that an earlier transaction deleted. On an error the
// content is not actual.
func (t *table) change(want content) error {
	if more := want.without(t.actual); len(more) > 0 {
		if err := t.commit(t.Batch(), more); err != nil {
			return err
		}
		t.actual = maps.Clone(t.actual)
		maps.Copy(t.actual, more)
	}
	if maps.Equal(t.actual, want) {
		return nil
	}
	if err := t.fill(want); err != nil {
		return err
	}
	t.actual, t.renewed = want, time.Now()
	return nil
}
