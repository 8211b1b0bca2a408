package layer2

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Config is what a Responder needs.
type Config struct {
	Log *slog.Logger
	// Links returns the node's present links; it must not block.
	Links func() []lb.Interface
	// Gateways returns the default gateways that the kernel knows on a link, by its index.
	Gateways func(index int) []lb.Neighbour
	Timers   Timers
	// Requests: gateways learn addresses from requests only.
	Requests bool
	// Lease says whether the last Set is still valid; nil means always.
	Lease Lease
	// Hears reports whether this node hears another machine on its link of the heartbeats: see lb.Hearing. nil means
	// never.
	Hears func() bool
	// Changed is called after a change of State, and Refused after a change of the result of Refused.
	Changed, Refused func()
}

// Responder answers ARP, Neighbor Discovery and the echo of other speakers for the addresses of the last Set.
type Responder struct {
	config    Config
	lease     leased
	changed   func()
	protocols [kinds]protocol
	echo      *echoes
	// listen opens a wire, and now is the clock; fields so that tests can replace them.
	listen func(lb.Interface, protocol) (wire, error)
	groups *groups
	now    func() time.Time
	// between chooses a time; a field for tests too.
	between func(low, high time.Duration) time.Duration

	table atomic.Pointer[table]
	// desired is the argument of the last Set.
	desired Desired
	// version counts what changed of the statuses, seen is the last result of State.
	version atomic.Uint64
	seen    atomic.Pointer[seen]
	// announcing mirrors the keeper's.
	announcing atomic.Bool
	ports      atomic.Pointer[map[int]*port]
	// refusals are the links whose sockets cannot be opened.
	refusals atomic.Pointer[[]refusal]
	// followed is the table for which the ports were opened.
	followed atomic.Pointer[table]
	wake     lb.Signal
	// notices pass from readers to the goroutine of Run.
	notices chan notice
	// foreignByLink are the foreign machines on our links by the name of each. They outlive ports.
	foreignByLink sync.Map
	counts        counts
}

// New returns a Responder that announces nothing yet.
func New(c Config) *Responder {
	c.Timers = c.Timers.withDefaults()
	r := &Responder{
		config:  c,
		lease:   leased{lease: c.Lease},
		echo:    &echoes{},
		listen:  listen,
		now:     time.Now,
		between: between,
		wake:    lb.NewSignal(),
		notices: make(chan notice, maxNotices),
	}

	r.protocols = [kinds]protocol{arpProtocol(), ndpProtocol(), r.echo.protocol()}
	r.changed = func() { r.version.Add(1); c.Changed() }
	r.groups = newGroups(c.Log, &r.counts.repairs[repairGroup])
	r.table.Store(newTable(Desired{}, Desired{}, &table{}, false, time.Time{}))
	r.ports.Store(&map[int]*port{})
	r.refusals.Store(&[]refusal{})
	return r
}

// Set makes exactly these addresses ours. When it returns, no other is answered any
// more, except addresses whose new owner does not announce them yet. Run announces
// the new ones. Calls must not overlap.
func (r *Responder) Set(d Desired) {
	old, before, lapsed := r.table.Load(), r.desired, r.lease.lapsed()
	want := newTable(d, before, old, lapsed, r.now())
	if r.desired = d; !want.entries.Same(old.entries) {
		r.table.Store(want)
		added, removed := r.count(want, old)
		r.announcing.Store(r.announcing.Load() || added > 0)
		r.config.Log.Info("announcements changed", "addresses", want.entries.Len(), "added", added, "removed", removed)
	} else if !lb.SameMap(d.Speakers, before.Speakers) &&
		!maps.Equal(d.Speakers, before.Speakers) ||
		!d.Owners.Same(before.Owners) {
		r.table.Store(want)
	}

	r.Kick()
}

// count returns how many addresses come and go, and counts those that are announced without a probe.
func (r *Responder) count(want, old *table) (added, removed int) {
	old.entries.Changes(want.entries, func(addr netip.Addr, before, e *entry, had, has bool) {
		switch {
		case !has:
			removed++
			return
		case !had:
			added++
		}

		if e.is() == ours && (before == nil || before.status != e.status) {
			r.counts.takeovers[number(lb.FamilyOf(addr))].Add(1)
		}
	})

	return added, removed
}

// SetKeys replaces the keys of the echo. All are accepted, and frames are sent with the first.
func (r *Responder) SetKeys(keys [][]byte) { r.echo.setKeys(keys) }

// Announcing reports whether addresses that just became ours are still to be announced
// for the first time: work that can wait should not compete with that.
func (r *Responder) Announcing() bool { return r.announcing.Load() }

// Kick makes Run read the links again. It never blocks.
func (r *Responder) Kick() { r.wake.Kick() }

// Run answers and announces until the context ends.
func (r *Responder) Run(ctx context.Context) error {
	var beside sync.WaitGroup
	beside.Go(func() { r.groups.run(ctx) })
	beside.Go(func() { r.learnGateways(ctx) })
	r.loop(ctx)
	beside.Wait()
	return nil
}

// loop owns the ports and their schedules.
func (r *Responder) loop(ctx context.Context) {
	k := newKeeper(r)
	defer k.close()
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
			k.sync()
		case <-check.C:
			k.sync()
		case n := <-r.notices:
			k.handle(n)
		case <-due.C:
		}

		due.Reset(k.work())
		r.announcing.Store(k.announcing())
	}
}
