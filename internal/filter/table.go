package filter

import (
	"errors"
	"fmt"
	"log/slog"
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
}

// equal reports whether both are the same.
func (d *Desired) equal(o *Desired) bool {
	return slices.Equal(d.PodLinks, o.PodLinks) && slices.Equal(d.Relayed, o.Relayed) && slices.Equal(d.Addresses, o.Addresses) && slices.Equal(d.Guarded, o.Guarded) &&
		slices.Equal(d.Reset, o.Reset) && slices.Equal(d.Pings, o.Pings) && slices.EqualFunc(d.Frontends, o.Frontends, equalFrontends)
}

// equalFrontends reports whether two frontends are the same in every field.
func equalFrontends(a, b lb.Frontend) bool {
	return a.Address == b.Address && a.Protocol == b.Protocol && a.Port == b.Port && a.Service == b.Service &&
		a.Restricted == b.Restricted && a.Refuse == b.Refuse && a.ConnectionLimit == b.ConnectionLimit && a.RateLimit == b.RateLimit &&
		a.ClusterIP == b.ClusterIP && a.LogDrops == b.LogDrops && slices.Equal(a.Allow, b.Allow) && slices.Equal(a.Deny, b.Deny)
}

// Config is what a Table needs.
type Config struct {
	Log    *slog.Logger
	Timers Timers
	// Changed is called when the result of Failed changes; it may be nil.
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
	// noLog: the kernel cannot log to a group.
	noLog bool
	// enforced and since are the results of Enforced.
	enforced bool
	since    time.Time
}

// New returns a Table. It does not access the kernel.
func New(c Config) *Table {
	return &Table{log: c.Log, timers: c.Timers.withDefaults(), changed: c.Changed, wake: make(chan struct{}, 1), since: time.Now()}
}

// Set makes the kernel enforce desired. It returns nil once that is in force. On an error the previous filter stays in
// force, and Run retries. The caller must not modify what desired refers to.
func (t *Table) Set(desired Desired) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.enforced && t.actual != nil && t.desired.equal(&desired) {
		return nil
	}
	t.desired = &desired
	t.generation++
	err := t.apply()
	if err != nil {
		t.kick()
	}
	return err
}

// apply makes the kernel's table equal to desired.
func (t *Table) apply() error {
	want, err := newImage(*t.desired, !t.noLog)
	if err == nil {
		err = t.reconcile(want)
	}
	if err != nil && !t.noLog {
		// A kernel without NFLOG refuses the table because of a few of its rules.
		if want, buildErr := newImage(*t.desired, false); buildErr == nil && t.replace(want) == nil {
			t.log.Warn("cannot log dropped packets: the kernel lacks NFLOG", "error", err)
			t.noLog, err = true, nil
		}
	}
	if ok := err == nil; ok != t.enforced {
		t.enforced, t.since = ok, time.Now()
	}
	if err != nil {
		return fmt.Errorf("set filter: %w", err)
	}
	return nil
}

// reconcile makes the kernel's table equal to want.
func (t *Table) reconcile(want *image) error {
	if t.actual == nil && !t.distrusted {
		if t.adopt(want); t.actual != nil {
			return nil
		}
	}
	if t.actual == nil || t.actual.layout != want.layout {
		return t.replace(want)
	}
	want.setParity(t.actual)
	c := want.changeFrom(t.actual)
	if c.empty() {
		t.actual = want
		return nil
	}
	if err := t.commit(&c); err != nil {
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
	return t.conn.Commit(b)
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
	t.desired, t.actual = nil, nil
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
