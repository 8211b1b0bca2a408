package layer2

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// Config is what a Responder needs.
type Config struct {
	Log *slog.Logger
	// Links returns the node's links as they are; it must not block.
	Links  func() []link.Link
	Timers Timers
	// Lease says whether what was set last still holds; nil always does.
	Lease Lease
	// Changed is called after State has something new to say of an address, and Refused after
	// Refused returns something else; nil is nobody.
	Changed, Refused func()
}

// memberships holds multicast groups on links, by index.
type memberships interface {
	set(desired map[membership]bool)
	run(ctx context.Context) error
}

// Responder answers ARP and Neighbor Discovery for the addresses it was last given.
type Responder struct {
	log       *slog.Logger
	links     func() []link.Link
	timers    Timers
	lease     leased
	changed   func()
	refused   func()
	protocols [families]protocol
	// listen opens a wire, groups joins and now tells the time; fields so that tests can be
	// the wire and the clock.
	listen func(link.Link, protocol, []netip.Addr) (wire, error)
	groups memberships
	now    func() time.Time
	// gateways of a link, by its index, as the kernel knows them; a field as the others are.
	gateways func(index int) []link.Neighbour
	// openEar opens the ears of the audit; a field as the others are.
	openEar func(link.Link, protocol, []bpf.Instruction) (*ear, error)

	table atomic.Pointer[table]
	// owners are those that were set last.
	owners atomic.Pointer[map[netip.Addr][][6]byte]
	// announcing mirrors the schedule's.
	announcing atomic.Bool
	ports      atomic.Pointer[map[int]*port]
	// refusals are the links whose sockets cannot be opened.
	refusals atomic.Pointer[[]refusal]
	// followed is the table that the ports were opened for.
	followed atomic.Pointer[table]
	wake     chan struct{}
	// heard is what readers tell the goroutine of Run.
	heard chan news
	// circles are the machines on our links that are no speakers.
	circles circles
	counts  counts
}

// New returns a Responder that announces nothing yet.
func New(c Config) *Responder {
	r := &Responder{
		log:       c.Log,
		links:     c.Links,
		timers:    c.Timers.withDefaults(),
		lease:     leased{lease: c.Lease},
		changed:   c.Changed,
		refused:   c.Refused,
		protocols: protocols(),
		listen:    listen,
		now:       time.Now,
		gateways:  link.Gateways,
		openEar:   openEar,
		wake:      make(chan struct{}, 1),
		heard:     make(chan news, mostNews),
	}
	for _, f := range []*func(){&r.changed, &r.refused} {
		if *f == nil {
			*f = func() {}
		}
	}
	r.groups = newGroups(c.Log, r.timers.CheckInterval, &r.counts.repairs[repairGroup])
	r.table.Store(newTable(Desired{}, &table{}, false))
	r.owners.Store(&map[netip.Addr][][6]byte{})
	r.ports.Store(&map[int]*port{})
	r.refusals.Store(&[]refusal{})
	return r
}

// Set makes exactly these addresses ours. When it returns, no other is answered
// any more, but for those that another node is to announce and does not yet;
// announcing new ones is up to Run. It is not to be called twice at once.
func (r *Responder) Set(d Desired) {
	old := r.table.Load()
	want := newTable(d, old, r.lease.lapsed())
	if !want.equal(old) {
		r.table.Store(want)
		added, removed := want.changes(old)
		r.countTakeovers(want, old)
		r.log.Info("announcements changed", "addresses", len(want.entries), "added", added, "removed", removed)
	} else if !maps.Equal(want.speakers, old.speakers) {
		r.table.Store(want)
	}
	r.owners.Store(&d.Owners)
	r.Kick()
}

// countTakeovers counts what begins to be announced without having been probed for.
func (r *Responder) countTakeovers(want, old *table) {
	for addr, e := range want.entries {
		if before := old.entries[addr]; e.is() == ours && (before == nil || before.status != e.status) {
			r.counts.takeovers[number(lb.FamilyOf(addr))].Add(1)
		}
	}
}

// Handing returns how many addresses are answered here only because the node
// that is to announce them was not heard yet.
func (r *Responder) Handing() int { return r.table.Load().count(handing) }

// Announcing reports whether neighbours are still being told of addresses that became
// ours at last, AnnounceTimes long: what can wait should not compete with that.
func (r *Responder) Announcing() bool { return r.announcing.Load() }

// Kick makes Run look at the links again. It never blocks.
func (r *Responder) Kick() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run answers and announces until the context ends.
func (r *Responder) Run(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return r.groups.run(ctx) })
	tasks.Go(func() error { r.learnGateways(ctx); return nil })
	tasks.Go(func() error { r.audit(ctx); return nil })
	tasks.Go(func() error { r.loop(ctx); return nil })
	return tasks.Wait()
}

// loop owns the ports and the schedule.
func (r *Responder) loop(ctx context.Context) {
	k := newKeeper(r)
	defer k.close()
	check := time.NewTicker(r.timers.CheckInterval)
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
		case n := <-r.heard:
			k.hear(n)
		case <-due.C:
		}
		if wait, ok := k.work(); ok {
			due.Reset(wait)
		}
		r.announcing.Store(k.schedule.announcing())
	}
}
