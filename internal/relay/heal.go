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

// status is what became of a table.
type status struct {
	// generation is another one whenever a transaction was sent.
	generation uint64
	// actual is what we last made it hold; nil while that is not known.
	actual content
	// absent: there is none, and none is needed yet.
	absent bool
	// renewed is when its members were written last.
	renewed time.Time
	// err is why it does not hold what it should, nil if it does; failed is when that was found last, and
	// failures how often since it did.
	err      error
	failed   time.Time
	failures int
}

// Run relays until the context ends. The relays stay in force then, but for those of
// addresses that are another node's by now: the next run would not know that.
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

// each calls fn for whatever comes, until the context ends.
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

// removeEnding takes out what is to end.
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

// apply makes the kernel hold what is desired, given that it holds what we left there.
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

// indexes returns those of the links that may carry relays.
func (r *Relayer) indexes() map[string]int {
	out := map[string]int{}
	for _, l := range r.links() {
		if l.CanAnnounce() {
			out[l.Name] = l.Index
		}
	}
	return out
}

// listing is what a look found in a table.
type listing struct {
	is  content
	err error
}

// check compares what the kernel holds with what is desired. It lists without the lock: what is set meanwhile does
// not wait for it.
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

// reconcileListed makes a table that was listed at a generation hold what is desired. A listing that is out of date says
// nothing: the next look is soon.
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

// refusedAfter is after how many failures the kernel does not take a table at all, rather than that somebody else changed it
// while we looked.
const refusedAfter = 3

// reconcileAndLog makes a table, which was seen or is as we left it, hold this, and says once if it cannot.
func (r *Relayer) reconcileAndLog(t *table, want content, expect bool, seen *listing) {
	was := t.failures
	repaired, err := t.reconcile(want, expect, seen, r.timers.RenewInterval)
	t.err, t.failures = err, t.failures+1
	if t.failed = time.Now(); err == nil {
		t.failures = 0
	}
	switch {
	case t.failures == refusedAfter:
		r.log.Error("connections are not relayed: they end when their address moves", "family", t.family.Family.Family, "error", err)
	case err == nil && was >= refusedAfter:
		r.log.Info("connections are relayed again", "family", t.family.Family.Family)
	}
	if repaired {
		r.repairs.Add(1)
		r.log.Warn("relays repaired", "family", t.family.Family.Family)
	}
}

// reconcile leads from what the kernel holds to what it is to hold, and reports whether it had to repair.
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
		return false, nil // nothing was relayed here yet: no table is needed
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

// change makes a table that is as we left it hold this: what is new first, which takes a tenth of the time of fill. That
// waits for the kernel to forget what an earlier transaction took out. An error means that it is not as we left it.
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
