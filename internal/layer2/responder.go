package layer2

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// Timers of a Responder; a zero field means its default.
type Timers struct {
	// AnnounceTimes are when an address is announced after it became ours on a
	// link. More often and sooner than ANNOUNCE_NUM and ANNOUNCE_INTERVAL (RFC
	// 5227 section 1.1: twice, 2 s apart) and MAX_NEIGHBOR_ADVERTISEMENT and
	// RetransTimer (RFC 4861 section 10: 3, 1 s apart): a neighbour that misses
	// them sends to the node that had the address before.
	AnnounceTimes []time.Duration
	// RefreshInterval is the time between announcements after those.
	RefreshInterval time.Duration
	// PaceInterval and PaceAddresses spread announcements that are due at once:
	// so many addresses, then a rest.
	PaceInterval  time.Duration
	PaceAddresses int
	// CheckInterval is how often links, sockets and groups are looked after unasked.
	CheckInterval time.Duration
}

func (t Timers) withDefaults() Timers {
	const ms = time.Millisecond
	if t.AnnounceTimes == nil {
		t.AnnounceTimes = []time.Duration{0, 50 * ms, 150 * ms, 500 * ms, time.Second, 2 * time.Second}
	}
	for field, value := range map[*time.Duration]time.Duration{
		&t.RefreshInterval: time.Minute,
		&t.PaceInterval:    ms,
		&t.CheckInterval:   time.Second,
	} {
		if *field == 0 {
			*field = value
		}
	}
	if t.PaceAddresses == 0 {
		t.PaceAddresses = 50
	}
	return t
}

// Config is what a Responder needs.
type Config struct {
	Log *slog.Logger
	// Links returns the node's links as they are; it must not block.
	Links  func() []link.Link
	Timers Timers
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
	protocols [families]protocol
	// listen opens a wire and groups joins; fields so that tests can be the wire.
	listen func(link.Link, protocol) (wire, error)
	groups memberships

	table  atomic.Pointer[table]
	ports  atomic.Pointer[map[int]*port]
	wake   chan struct{}
	counts counts
}

// New returns a Responder that announces nothing yet.
func New(c Config) *Responder {
	r := &Responder{
		log:       c.Log,
		links:     c.Links,
		timers:    c.Timers.withDefaults(),
		protocols: protocols(),
		listen:    listen,
		wake:      make(chan struct{}, 1),
	}
	r.groups = newGroups(c.Log, r.timers.CheckInterval, &r.counts.repairs[repairGroup])
	r.table.Store(newTable(nil))
	r.ports.Store(&map[int]*port{})
	return r
}

// Set makes exactly these addresses ours. When it returns, no other is answered
// any more; announcing new ones is up to Run.
func (r *Responder) Set(announcements []lb.Announcement) {
	want := newTable(announcements)
	old := r.table.Load()
	if !want.equal(old) {
		r.table.Store(want)
		added, removed := want.changes(old)
		r.log.Info("announcements changed", "addresses", len(want.links), "added", added, "removed", removed)
	}
	r.Kick()
}

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
		case <-due.C:
		}
		if wait, ok := k.announce(); ok {
			due.Reset(wait)
		}
	}
}
