package relay

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// table is one family's table in the kernel.
type table struct {
	*layout
	// held is what we last made it hold; nil while that is not known.
	held *content
	// absent: there is none, and none is needed yet.
	absent bool
	// filled is when its members were written last.
	filled time.Time
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
	for {
		select {
		case <-ctx.Done():
			r.part()
			return nil
		case <-r.wake:
			r.apply(false)
		case <-check.C:
			r.apply(true)
		}
	}
}

// part takes out what is to end.
func (r *Relayer) part() {
	r.mu.Lock()
	if d := r.desired; d != nil {
		stays := *d
		stays.Relays = slices.DeleteFunc(slices.Clone(d.Relays), func(one lb.Relay) bool { return !one.Until.IsZero() })
		r.desired = &stays
	}
	r.mu.Unlock()
	r.apply(false)
}

// apply makes the kernel hold what is desired; with look, it is asked first what it holds.
func (r *Relayer) apply(look bool) {
	r.kernel.Lock()
	defer r.kernel.Unlock()
	r.mu.Lock()
	desired, tried := r.desired, r.tried
	r.mu.Unlock()
	if desired == nil {
		return
	}
	indexes := map[string]int{}
	for _, l := range r.links() {
		if l.CanAnnounce() {
			indexes[l.Name] = l.Index
		}
	}
	for _, t := range r.tables {
		r.keep(t, desired.content(t.family, indexes), desired.Expect, look)
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

// refusal is after how many failures the kernel does not take a table at all, rather than that somebody else changed it
// while we looked.
const refusal = 3

// keep makes a table hold this, and says once if it cannot.
func (r *Relayer) keep(t *table, want content, expect, look bool) {
	if look && t.failures >= refusal && time.Since(t.failed) < r.timers.RetryInterval {
		return
	}
	was := t.failures
	repaired, err := t.reach(want, expect, look, r.timers.RenewInterval)
	t.err, t.failures = err, t.failures+1
	if t.failed = time.Now(); err == nil {
		t.failures = 0
	}
	switch {
	case t.failures == refusal:
		r.log.Error("connections are not relayed: they end when their address moves", "family", t.Family, "err", err)
	case err == nil && was >= refusal:
		r.log.Info("connections are relayed again", "family", t.Family)
	}
	if repaired {
		r.repairs.Add(1)
		r.log.Warn("relays repaired", "family", t.Family)
	}
}

// reach leads from what the kernel holds to what it is to hold, and reports whether it had to repair.
func (t *table) reach(want content, expect, look bool, renew time.Duration) (repaired bool, err error) {
	if t.held != nil && !look && t.change(want) == nil {
		return false, nil
	}
	if t.absent && len(want.relays) == 0 && !expect {
		return false, nil
	}
	is, err := t.read()
	there := err == nil
	if !there && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if t.absent = !there && t.held == nil && len(want.relays) == 0 && !expect; t.absent {
		return false, nil // nothing was relayed here yet: no table is needed
	}
	damaged := t.held != nil && (!there || !is.equal(*t.held))
	switch {
	case !there:
		err = t.build(want)
	case !is.equal(want) || time.Since(t.filled) >= renew:
		err = t.fill(want)
	default:
		return false, nil
	}
	if err != nil {
		return false, err
	}
	t.held, t.filled = &want, time.Now()
	return damaged, nil
}

// change makes a table that is as we left it hold this: what is new first. An error
// means that it is not as we left it.
func (t *table) change(want content) error {
	if more := want.without(*t.held); !more.equal(newContent()) {
		if err := t.add(more); err != nil {
			return err
		}
		held := t.held.with(more)
		t.held = &held
	}
	if t.held.equal(want) {
		return nil
	}
	if err := t.fill(want); err != nil {
		return err
	}
	t.held, t.filled = &want, time.Now()
	return nil
}
