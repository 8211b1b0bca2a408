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

// Desired is what the kernel is to enforce: the filter, and what the node knows of itself.
type Desired struct {
	lb.Filter
	// Internal sends traffic from within the cluster to the ClusterIP of its frontend, past every range. Off,
	// such traffic is a source like any other.
	Internal bool
	// PodCIDRs are the sources of this node's own pods.
	PodCIDRs []netip.Prefix
	// Uplinks are the names of the links that lead out of the node; a pod's address that arrives there is
	// forged. While there are none, no source counts as a pod.
	Uplinks []string
	// Relayed are the addresses whose older connections another node serves: what belongs to one of those opens
	// none here, and limits do not count it.
	Relayed []netip.Addr
	// Addresses are the node's own. The first of a family answers echo requests; without one the address of
	// the link does that they arrive on.
	Addresses []netip.Addr
}

// equal reports whether both ask for the same.
func (d *Desired) equal(o *Desired) bool {
	return d.Internal == o.Internal && slices.Equal(d.PodCIDRs, o.PodCIDRs) && slices.Equal(d.Uplinks, o.Uplinks) &&
		slices.Equal(d.Relayed, o.Relayed) && slices.Equal(d.Addresses, o.Addresses) && slices.Equal(d.Guarded, o.Guarded) &&
		slices.Equal(d.Reset, o.Reset) && slices.Equal(d.Pings, o.Pings) && slices.EqualFunc(d.Frontends, o.Frontends, equalFrontends)
}

// equalFrontends reports whether two frontends are the same in all that they say.
func equalFrontends(a, b lb.Frontend) bool {
	return a.Address == b.Address && a.Protocol == b.Protocol && a.Port == b.Port && a.Service == b.Service &&
		a.Restricted == b.Restricted && a.Refuse == b.Refuse && a.ConnectionLimit == b.ConnectionLimit && a.RateLimit == b.RateLimit &&
		a.ClusterIP == b.ClusterIP && a.LogDrops == b.LogDrops && slices.Equal(a.Allow, b.Allow) && slices.Equal(a.Deny, b.Deny)
}

// Config is what a Table needs.
type Config struct {
	Log    *slog.Logger
	Timers Timers
	// Changed is called when Failed returns something else than before; nil is for nobody.
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
	// damage is the worst nft.Change that watch has seen and heal has not looked into yet.
	damage atomic.Int32

	// mu guards what follows, and transactions: one at a time.
	mu   sync.Mutex
	conn nft.Conn
	// desired is what was set last, nil before.
	desired *Desired
	// actual is what the kernel holds as far as we know; nil means that we do not.
	actual *image
	// distrusted: the table that is there is not to be taken over.
	distrusted bool
	// stale are members of its sets that nothing leads to any more.
	stale []nft.SetElement
	// handle of the table that holds it.
	handle uint64
	// layout of the table in force.
	layout *nft.Layout
	// generation is another one whenever something was set, or a transaction was sent.
	generation uint64
	// failureLogged: it was logged that a repair failed, and none has succeeded since.
	failureLogged bool
	// noLog: the kernel cannot log to a group.
	noLog bool
	// enforced and since are what Enforced tells.
	enforced bool
	since    time.Time
}

// New returns a Table that has not touched the kernel yet.
func New(c Config) *Table {
	return &Table{log: c.Log, timers: c.Timers.withDefaults(), changed: c.Changed, wake: make(chan struct{}, 1), since: time.Now()}
}

// Set makes the kernel enforce exactly this. When it returns nil, it does; on an error what was in force
// before still is, and Run tries again. Nobody may change what desired refers to from then on.
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

// apply makes the kernel hold what is desired.
func (t *Table) apply() error {
	want, err := newImage(*t.desired, !t.noLog)
	if err == nil {
		err = t.reconcile(want)
	}
	if err != nil && !t.noLog {
		// A kernel without NFLOG refuses the table because of a few of its rules.
		if want, buildErr := newImage(*t.desired, false); buildErr == nil && t.replace(want) == nil {
			t.log.Warn("drops cannot be logged", "error", err)
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

// reconcile leads from what the kernel holds to what it is to hold.
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
		// The table is not what we took it for.
		t.log.Warn("filter is replaced", "error", err)
		return t.replace(want)
	}
	t.actual = want
	t.log.Info("filter changed", "frontends", len(want.frontends), "added", len(c.add), "removed", len(c.remove)+len(c.removeLater))
	return nil
}

// commit makes a change, and takes away what an earlier one left for later.
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

// sweep takes away what an earlier change left for later.
func (t *Table) sweep() {
	if t.actual == nil || len(t.stale) == 0 {
		return
	}
	if err := t.commit(&change{}); err != nil {
		// The table is not what we took it for.
		t.log.Warn("filter is not as it was left", "error", err)
		t.noteDamage(nft.Rules)
	}
}

// send sends a transaction.
func (t *Table) send(b *nft.Batch) error {
	t.generation++
	return t.conn.Commit(b)
}

// distrust makes the next apply replace the table, whatever is there.
func (t *Table) distrust() { t.actual, t.distrusted = nil, true }

// replace replaces the table in one transaction: there is no moment without it, or with half of it. What is
// there stays where packets would notice. A base chain gets other rules: the kernel calls a new one ahead of the
// old, and a packet between the two, while one takes over from the other, would meet neither's rules. A set of
// intervals gets other elements: those of a new one are found a little later than its rules take effect.
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
			t.log.Warn("filter that is there cannot get other rules", "error", err)
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

// recordActual notes that the kernel holds this, in a table that may be new.
func (t *Table) recordActual(img *image) {
	t.actual, t.distrusted = img, false
	t.handle, _ = t.layout.Handle()
}

// Enforced reports whether the kernel enforces what was set last, and since when that is so or not so.
func (t *Table) Enforced() (ok bool, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.enforced, t.since
}

// Grace is how long the table may be out of force before that counts as failed. A rebuild takes a tenth of it.
const Grace = 2 * time.Second

// Failed reports whether the table has been out of force for longer than a rebuild takes: what has ranges is to be
// attracted no more.
func (t *Table) Failed() bool {
	ok, since := t.Enforced()
	return !ok && time.Since(since) >= Grace
}

// Remove deletes the table and nothing else. Run, if it runs still, leaves it so.
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

// kick makes Run look. It never blocks.
func (t *Table) kick() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}
