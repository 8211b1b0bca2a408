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

// Desired is the whole desired state of a Table: the filter, and facts about the node.
type Desired struct {
	lb.Filter
	// PodLinks are the names of the links that lead only to pods of this node. A name that ends in * is a prefix of
	// names. Packets of any other link come from outside, even if the link is newer than this list.
	PodLinks []string
	// Relayed are the addresses whose older connections another node serves. Limits do not count the packets of these
	// connections.
	Relayed lb.Map[netip.Addr, struct{}]
	// Addresses are the node's own addresses. The first address of a family answers echo requests. Without one, the
	// address of the receiving link does.
	Addresses []netip.Addr
	// NoLog reports that the kernel cannot log to a group.
	NoLog bool
	// NoLimits reports that the kernel cannot limit connections.
	NoLimits bool
	// NoInternal reports that the kernel cannot redirect internal traffic.
	NoInternal bool
	// NoRoutes reports that the kernel cannot look up routes in a rule.
	NoRoutes bool
}

// equal reports whether two desired states are the same.
func (d *Desired) equal(o *Desired) bool {
	return d.NoLog == o.NoLog &&
		d.NoLimits == o.NoLimits &&
		d.NoInternal == o.NoInternal &&
		d.NoRoutes == o.NoRoutes &&
		slices.Equal(d.Addresses, o.Addresses) &&
		d.sameCommon(o) &&
		d.Relayed.Same(o.Relayed) &&
		d.Frontends.Same(o.Frontends) &&
		d.Pings.Same(o.Pings)
}

// sameCommon reports whether two desired states have the same elements that belong to no frontend.
func (d *Desired) sameCommon(o *Desired) bool {
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
	// failureReported reports whether changed was called because Failed is true.
	failureReported atomic.Bool
	// owned is the table in the kernel, and guards the following fields.
	owned *nft.Owned[*image]
	// desired is the argument of the last Set; nil before the first.
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
		Log:     log,
		Table:   ours(),
		Image:   func(old *image) *image { return newImage(&t.library, t.desired, old) },
		Applied: t.applied,
		Changed: t.reportFailure,
	})
	return t
}

// Set makes the kernel enforce the desired state. It returns nil when that is in force, but for the Services of
// Refused, which are closed. On an error the previous filter stays in force, and Run retries. The caller must not
// modify anything to which desired refers.
func (t *Table) Set(desired Desired) error {
	t.owned.Lock()
	defer t.owned.Unlock()
	same := t.desired != nil && t.desired.equal(&desired)
	t.desired = &desired // even if it is the same: the next comparison with the same maps is cheap
	return t.owned.Apply(same)
}

// reportFailure calls changed when the result of Failed changes. The Owned calls it when the table begins to fail or
// works again.
func (t *Table) reportFailure() {
	works, _ := t.owned.Enforced()
	if works {
		if t.failureReported.Swap(false) {
			go t.changed()
		}
		return
	}

	time.AfterFunc(Grace, func() {
		if t.Failed() {
			t.failureReported.Store(true)
			t.changed()
		}
	})
}

// applied reports the Services that are closed when an image comes into force.
func (t *Table) applied(img *image) {
	for _, service := range slices.SortedFunc(maps.Keys(img.refused), lb.Key.Compare) {
		err := img.refused[service]
		if t.closed[service] == nil {
			t.log.Error("filter closes a Service because of its ranges", "service", service, "error", err)
		}
	}

	sameServices := maps.EqualFunc(t.closed, img.refused, func(error, error) bool { return true })
	if !sameServices {
		go t.changed()
	}

	t.closed = img.refused
	t.library.clean(img)
}

// Run repairs the table and logs drops until the context ends. The table then stays in force.
func (t *Table) Run(ctx context.Context) error {
	var tasks errgroup.Group
	tasks.Go(func() error { return t.readLog(ctx) })
	tasks.Go(func() error { return t.owned.Run(ctx) })
	return tasks.Wait()
}

// Refused returns the Services that are closed because of their lists, with the reason. All others are in force. The
// caller must not modify the map.
func (t *Table) Refused() map[lb.Key]error {
	t.owned.Lock()
	defer t.owned.Unlock()
	return t.closed
}

// Enforced reports whether the kernel enforces the argument of the last Set, and since when.
func (t *Table) Enforced() (ok bool, since time.Time) {
	t.owned.Lock()
	defer t.owned.Unlock()
	return t.owned.Enforced()
}

// Grace is the time for which the table may be out of force before it counts as failed. A rebuild takes a tenth of it.
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
	t.desired = nil
	t.closed = nil
	return err
}

// State returns the state of the table for the daemon's /debug/state. It has no counters: these are metrics.
func (t *Table) State() any {
	ok, since := t.Enforced()
	return struct {
		Enforced bool
		Since    time.Time
	}{ok, since}
}
