package filter

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Desired is what the kernel must enforce: the filter, and facts about the node.
type Desired struct {
	lb.Filter
	// PodLinks are the names of the links that lead to pods of this node and nowhere else; one that ends in * stands
	// for all names that begin so. What comes by any other link comes from outside, also by a link of which nobody
	// knew when this was set.
	PodLinks []string
	// Relayed are the addresses whose older connections another node serves. Limits do not count the packets of these
	// connections.
	Relayed lb.Map[netip.Addr, struct{}]
	// Addresses are the node's own. The first of a family answers echo requests; without one, the address of the
	// receiving link does.
	Addresses []netip.Addr
	// NoLog: the kernel cannot log to a group. NoLimits: it cannot limit connections. NoInternal: it cannot redirect
	// internal traffic. NoRoutes: it cannot look up routes.
	NoLog, NoLimits, NoInternal, NoRoutes bool
}

// equal reports whether both are the same.
func (d *Desired) equal(o *Desired) bool {
	return d.NoLog == o.NoLog &&
		d.NoLimits == o.NoLimits &&
		d.NoInternal == o.NoInternal &&
		d.NoRoutes == o.NoRoutes &&
		slices.Equal(d.Addresses, o.Addresses) &&
		d.sameOthers(o) && d.Relayed.Same(o.Relayed) && d.Frontends.Same(o.Frontends) && d.Pings.Same(o.Pings)
}

// sameOthers reports whether both have the same elements that belong to no frontend.
func (d *Desired) sameOthers(o *Desired) bool {
	return slices.Equal(d.PodLinks, o.PodLinks) &&
		slices.Equal(d.Guarded, o.Guarded) &&
		slices.Equal(d.Reset, o.Reset) &&
		slices.Equal(d.Open, o.Open)
}

// Table is the nftables table of Holdfast on this node.
type Table struct {
	log     *slog.Logger
	changed func()
	totals  packetTotals
	// told: changed was called because Failed is true.
	told atomic.Bool
	// owned is the table in the kernel, and guards the following fields.
	owned *nft.Owned[*image]
	// desired is the argument of the last Set, nil before the first.
	desired *Desired
	// closed is the result of Refused.
	closed  map[lb.Key]error
	library library
}

// New returns a Table that calls changed when the result of Failed or of Refused changes. It does not access the
// kernel.
func New(log *slog.Logger, changed func()) *Table {
	t := &Table{log: log, changed: changed}
	t.owned = nft.NewOwned(nft.Config[*image]{
		Log: log, Table: ours(), Applied: t.done, Changed: t.failsOrWorks,
		Image: func(old *image) *image { return newImage(&t.library, t.desired, old) },
	})
	return t
}

// Set makes the kernel enforce desired. It returns nil once that is in force, but for the Services of Refused. On an
// error the previous filter stays in force, and Run retries. The caller must not modify what desired refers to.
func (t *Table) Set(desired Desired) error {
	t.owned.Lock()
	defer t.owned.Unlock()
	same := t.desired != nil && t.desired.equal(&desired)
	t.desired = &desired // also if it is the same: it costs nothing to compare when it comes again
	return t.owned.Apply(same)
}

// failsOrWorks calls changed once the result of Failed is another.
func (t *Table) failsOrWorks() {
	if works, _ := t.owned.Enforced(); !works {
		time.AfterFunc(Grace, func() {
			if t.Failed() {
				t.told.Store(true)
				t.changed()
			}
		})
	} else if t.told.Swap(false) {
		go t.changed()
	}
}

// done notes what is in force.
func (t *Table) done(img *image) {
	for _, service := range slices.SortedFunc(maps.Keys(img.refused), lb.Key.Compare) {
		if t.closed[service] == nil {
			t.log.Error(
				"filter closes a Service because of its ranges",
				"service",
				service,
				"error",
				img.refused[service],
			)
		}
	}

	if !maps.EqualFunc(t.closed, img.refused, func(error, error) bool { return true }) {
		go t.changed()
	}

	t.closed = img.refused
	t.library.clean(img)
}

// Run repairs the table until the context ends. The table then stays in force.
func (t *Table) Run(ctx context.Context) error {
	var tasks errgroup.Group
	tasks.Go(func() error { return t.readLog(ctx) })
	tasks.Go(func() error { return t.owned.Run(ctx) })
	return tasks.Wait()
}

// Refused returns the Services that are closed because of their lists, and why. All others are in force.
func (t *Table) Refused() map[lb.Key]error {
	t.owned.Lock()
	defer t.owned.Unlock()
	return t.closed
}

// Enforced reports whether the kernel enforces the argument of the last Set, and the time of the last change of this.
func (t *Table) Enforced() (ok bool, since time.Time) {
	t.owned.Lock()
	defer t.owned.Unlock()
	return t.owned.Enforced()
}

// Grace is how long the table may be out of force before it counts as failed. A rebuild takes a tenth of it.
const Grace = 2 * time.Second

// Failed reports whether the table has been out of force for Grace: the node must withdraw the addresses with ranges.
func (t *Table) Failed() bool {
	ok, since := t.Enforced()
	return !ok && time.Since(since) >= Grace
}

// Remove deletes the table. A concurrent Run does not restore it.
func (t *Table) Remove() error {
	err := t.owned.Remove()
	t.owned.Lock()
	defer t.owned.Unlock()
	t.desired, t.closed = nil, nil
	return err
}

// State is for the page of the daemon. The metrics count packets.
func (t *Table) State() any {
	ok, since := t.Enforced()
	return struct {
		Enforced bool
		Since    time.Time
	}{ok, since}
}
