package filter

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	Relayed []netip.Addr
	// Addresses are the node's own. The first of a family answers echo requests; without one, the address of the
	// receiving link does.
	Addresses []netip.Addr
	// NoLog: the kernel cannot log to a group.
	NoLog bool
}

// equal reports whether both are the same.
func (d *Desired) equal(o *Desired) bool {
	return d.NoLog == o.NoLog && slices.Equal(d.PodLinks, o.PodLinks) && slices.Equal(d.Relayed, o.Relayed) && slices.Equal(d.Addresses, o.Addresses) && slices.Equal(d.Guarded, o.Guarded) &&
		slices.Equal(d.Reset, o.Reset) && slices.Equal(d.Pings, o.Pings) && slices.EqualFunc(d.Frontends, o.Frontends, equalFrontends)
}

// equalFrontends reports whether two frontends are the same in every field.
func equalFrontends(a, b lb.Frontend) bool {
	return a.Address == b.Address && a.Protocol == b.Protocol && a.Port == b.Port && a.Service == b.Service &&
		a.Restricted == b.Restricted && a.Refuse == b.Refuse && a.ConnectionLimit == b.ConnectionLimit && a.RateLimit == b.RateLimit &&
		a.ClusterIP == b.ClusterIP && a.LogDrops == b.LogDrops && samePrefixes(a.Allow, b.Allow) && samePrefixes(a.Deny, b.Deny)
}

// Config is what a Table needs.
type Config struct {
	Log    *slog.Logger
	Timers Timers
	// Changed is called when the result of Failed or of Refused changes; it may be nil.
	Changed func()
}

// Table is the nftables table of Holdfast on this node.
type Table struct {
	log     *slog.Logger
	timers  Timers
	changed func()
	wake    chan struct{}
	repairs atomic.Uint64
	totals  packetTotals
	// damage is the most severe nft.Change that watch has seen and repairLoop has not handled.
	damage atomic.Int32

	// mu guards the following fields and serializes transactions.
	mu   sync.Mutex
	conn nft.Conn
	// desired is the argument of the last Set, nil before the first.
	desired *Desired
	// actual is the known content of the kernel's table; nil if it is unknown.
	actual *image
	// distrusted: the existing table must not be adopted.
	distrusted bool
	// stale are elements that no rule reaches, to be deleted by the next transaction.
	stale []nft.SetElement
	// handle of the table that holds it.
	handle uint64
	// layout of the table in force.
	layout *nft.Layout
	// generation increases with every change by Set and every transaction.
	generation uint64
	// failureLogged: the failure of the last repair is in the log.
	failureLogged bool
	// enforced and since are the results of Enforced; failure is why the table is not in force, of the last attempt.
	enforced bool
	since    time.Time
	failure  error
	// refused are the lists that the kernel refused, and closed is the result of Refused.
	refused map[*list]error
	closed  map[lb.Key]error
	library library
	// retryAt is when the kernel is asked again for what it refused, zero if it refused nothing; wait is the time between
	// the last two attempts.
	retryAt time.Time
	wait    time.Duration
	// transact sends a transaction to the kernel.
	transact func(*nft.Batch) error
}

// New returns a Table. It does not access the kernel.
func New(c Config) *Table {
	t := &Table{log: c.Log, timers: c.Timers.withDefaults(), changed: c.Changed, wake: make(chan struct{}, 1), since: time.Now()}
	t.transact = t.conn.Commit
	return t
}

// Set makes the kernel enforce desired. It returns nil once that is in force, but for the Services of Refused. On an error
// the previous filter stays in force, and Run retries. The caller must not modify what desired refers to.
func (t *Table) Set(desired Desired) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if (t.failure != nil || t.enforced && t.actual != nil) && t.desired.equal(&desired) {
		return t.failure
	}
	t.desired = &desired
	t.generation++
	if t.failure != nil {
		t.wait = 0 // the kernel may take this one
	}
	due := t.retryAt
	err := t.apply()
	if t.retryAt != due {
		t.kick()
	}
	return err
}

// apply makes the kernel's table equal to desired.
func (t *Table) apply() error {
	t.failure = t.put()
	if ok := t.failure == nil; ok != t.enforced {
		t.enforced, t.since = ok, time.Now()
	}
	if t.failure != nil {
		t.failure = fmt.Errorf("set filter: %w", t.failure)
		t.postpone()
	}
	return t.failure
}

// put is apply without its bookkeeping, and without the lists that the kernel refuses.
func (t *Table) put() error {
	want := newImage(&t.library, t.desired, t.refused, t.actual)
	err := t.reconcile(want)
	for range maxRefusals {
		refused := want.refusedBy(err)
		if len(refused) == 0 {
			break
		}
		maps.Copy(refused, t.refused)
		t.refused = refused
		t.postpone()
		want = newImage(&t.library, t.desired, t.refused, t.actual)
		err = t.reconcile(want)
	}
	if err != nil {
		return err
	}
	for _, service := range slices.SortedFunc(maps.Keys(want.refused), lb.Key.Compare) {
		if t.closed[service] == nil {
			t.log.Error("filter closes a Service because of its ranges", "service", service, "error", want.refused[service])
		}
	}
	t.closed = want.refused
	t.library.clean(want)
	return nil
}

// reconcile makes the kernel's table equal to want.
func (t *Table) reconcile(want *image) error {
	if t.actual == nil && !t.distrusted {
		if err := t.adopt(want); t.actual != nil || want.refusedBy(err) != nil {
			return err
		}
	}
	if t.actual == nil || t.actual.layout != want.layout {
		return t.replace(want)
	}
	c := want.changeFrom(t.actual)
	if c.empty() {
		t.actual = want
		return nil
	}
	if err := t.commit(&c); err != nil {
		if want.refusedBy(err) != nil {
			return err
		}
		// The content of the table differs from actual.
		t.log.Warn("filter cannot be changed and is replaced", "error", err)
		return t.replace(want)
	}
	t.actual = want
	t.log.Info("filter changed", "frontends", len(want.frontends), "added", len(c.add), "removed", len(c.remove)+len(c.removeLater))
	return nil
}

// commit applies a change, and deletes the stale elements of an earlier one.
func (t *Table) commit(c *change) error {
	c.remove = append(c.remove, t.stale...)
	b := t.layout.Batch()
	c.write(b, t.layout)
	if err := t.send(b); err != nil {
		return err
	}
	t.stale = c.removeLater
	return nil
}

// sweep deletes the stale elements of an earlier change.
func (t *Table) sweep() {
	if t.actual == nil || len(t.stale) == 0 {
		return
	}
	if err := t.commit(&change{}); err != nil {
		// The content of the table differs from actual.
		t.log.Warn("filter differs from its last known state", "error", err)
		t.noteDamage(nft.Rules)
	}
}

// send sends a transaction.
func (t *Table) send(b *nft.Batch) error {
	t.generation++
	return t.transact(b)
}

// distrust makes the next apply replace the table, whatever its content.
func (t *Table) distrust() { t.actual, t.distrusted = nil, true }

// replace replaces the table in one transaction, so that packets see the old or the new table. It keeps base chains and
// interval sets, and exchanges their rules and elements: the kernel calls a new base chain ahead of the old one, and
// during the commit a packet between the two would meet the rules of neither. The elements of a new interval set become
// visible a little later than the rules that use it.
func (t *Table) replace(want *image) error {
	t.layout = want.layout.table()
	t.actual, t.stale = nil, nil
	b := t.layout.Batch()
	b.Create()
	var err error
	inPlace := clearTable(b, t.layout)
	if inPlace {
		want.build(b, t.layout)
		if err = t.send(b); err != nil {
			if want.refusedBy(err) != nil {
				return err
			}
			t.log.Warn("existing filter cannot be changed in place", "error", err)
		}
	}
	if !inPlace || err != nil {
		b = t.layout.Batch()
		b.Remove()
		b.Create()
		want.build(b, t.layout)
		if err = t.send(b); err != nil {
			return err
		}
	}
	t.recordActual(want)
	t.log.Info("filter in force", "frontends", len(want.frontends))
	return nil
}

// recordActual records the content of the kernel's table, which may be a new one.
func (t *Table) recordActual(img *image) {
	t.actual, t.distrusted = img, false
	t.handle, _ = t.layout.Handle()
}

// Enforced reports whether the kernel enforces the argument of the last Set, and the time of the last change of this.
func (t *Table) Enforced() (ok bool, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.enforced, t.since
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
	t.mu.Lock()
	defer t.mu.Unlock()
	t.desired, t.actual, t.refused, t.closed = nil, nil, nil, nil
	t.failure, t.retryAt = nil, time.Time{}
	t.enforced, t.since = false, time.Now()
	b := ours().Batch()
	b.Remove()
	if err := t.send(b); err != nil {
		return errors.Join(fmt.Errorf("remove filter: %w", err), t.conn.Close())
	}
	return t.conn.Close()
}

// kick wakes repairLoop. It never blocks.
func (t *Table) kick() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}
