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
	// Links returns the node's present links. It must not block.
	Links func() []lb.Interface
	// Gateways returns the default gateways that the kernel knows on a link, by its index.
	Gateways func(index int) []lb.Neighbour
	Timers   Timers
	// AnnounceByRequest reports whether gateways learn addresses from requests only.
	AnnounceByRequest bool
	// Lease reports whether the last Set is still valid. nil means always.
	Lease Lease
	// ReceivesHeartbeats reports whether this node hears another machine on its link of the heartbeats: see lb.Hearing.
	// nil means that this node does not know, and answers no such question.
	ReceivesHeartbeats func() bool
	// Precedence returns what this node states of itself in a contest: see lb.Question.
	Precedence func() lb.Precedence
	// Claimed is called after a claim of another speaker for an address of this node: see Claims. It must not block.
	Claimed func()
	// Changed is called after a change of State, and Refused after a change of the result of Refused.
	Changed, Refused func()
}

// system holds the functions of the machine that a Responder uses. Tests replace it.
type system struct {
	clock func() time.Time
	// random chooses a duration from low to high.
	random func(low, high time.Duration) time.Duration
	// listen opens a connection for the frames of a protocol on a link.
	listen func(lb.Interface, protocol) (frameConn, error)
	groups groupKernel
}

// published is the state that the goroutine of Run shows to other goroutines.
type published struct {
	ports atomic.Pointer[map[int]*linkPort]
	// refusals are the links whose sockets cannot be opened.
	refusals atomic.Pointer[[]refusedLink]
	// table is the table that the ports and their schedules reflect.
	table atomic.Pointer[addressTable]
	// isAnnouncing reports whether a first announcement is still to be sent.
	isAnnouncing atomic.Bool
}

// Responder answers ARP, Neighbor Discovery and the echo of other speakers for the addresses of the last Set.
type Responder struct {
	config    Config
	system    system
	lapses    lapseTracker
	protocols [protocolCount]protocol
	echo      *echoCodec
	groups    *groups

	// desired is the argument of the last Set, and table what readers look its addresses up in.
	desired Desired
	table   atomic.Pointer[addressTable]

	published published
	state     stateCache
	// wake makes Run read the table and the links again.
	wake lb.Signal
	// notices pass from readers to the goroutine of Run.
	notices chan notice
	claims  speakerClaims
	// foreignByLink has a *foreignMachines for each link name. They outlive ports.
	foreignByLink sync.Map
	counters      counters
}

// New returns a Responder that announces nothing yet.
func New(c Config) *Responder {
	return newResponder(c, realSystem())
}

// realSystem returns the clock, the random numbers and the sockets of this machine.
func realSystem() system {
	return system{
		clock:  time.Now,
		random: randomBetween,
		listen: listen,
		groups: &groupSockets{},
	}
}

// newResponder returns a Responder that uses these functions of the machine.
func newResponder(c Config, s system) *Responder {
	c.Timers = c.Timers.withDefaults()
	r := &Responder{
		config:  c,
		system:  s,
		lapses:  lapseTracker{lease: c.Lease},
		echo:    &echoCodec{},
		wake:    lb.NewSignal(),
		notices: make(chan notice, maxNotices),
	}

	r.protocols = [protocolCount]protocol{arpProtocol(), ndpProtocol(), r.echo.protocol()}
	r.groups = newGroups(c.Log, s.groups, &r.counters.repairs[repairGroup])
	r.table.Store(newTable(
		Desired{},
		Desired{},
		&addressTable{},
		false,
		time.Time{},
	))
	r.published.ports.Store(&map[int]*linkPort{})
	r.published.refusals.Store(&[]refusedLink{})

	return r
}

// Set makes this node answer for exactly these addresses. When it returns, no other address is answered any more,
// except addresses whose new owner was not heard yet. Run announces the new ones. Calls must not overlap.
func (r *Responder) Set(d Desired) {
	old := r.table.Load()
	before := r.desired
	next := newTable(d, before, old, r.lapses.takeLapse(), r.system.clock())
	r.desired = d

	sameSpeakers := lb.SameMap(d.Speakers, before.Speakers) || maps.Equal(d.Speakers, before.Speakers)
	sameOwners := d.Owners.Same(before.Owners)
	switch {
	case !next.entries.Same(old.entries):
		r.replaceTable(next, old)
	case !sameSpeakers || !sameOwners:
		r.table.Store(next)
	}

	r.Kick()
}

// replaceTable makes a table with other entries the present one.
func (r *Responder) replaceTable(next, old *addressTable) {
	r.table.Store(next)
	added, removed := r.countChanges(next, old)
	if added > 0 {
		r.published.isAnnouncing.Store(true)
	}

	r.config.Log.Info(
		"announcements changed",
		"addresses", next.entries.Len(),
		"added", added,
		"removed", removed,
	)
}

// countChanges returns the numbers of added and removed addresses. It counts a takeover for each address that is
// announced without a probe.
func (r *Responder) countChanges(next, old *addressTable) (added, removed int) {
	old.entries.Changes(next.entries, func(addr netip.Addr, before, e *tableEntry, existed, exists bool) {
		if !exists {
			removed++
			return
		}

		if !existed {
			added++
		}

		isNewStatus := before == nil || before.status != e.status
		if isNewStatus && e.current() == owned {
			r.counters.takeovers[familyIndex(lb.FamilyOf(addr))].Add(1)
		}
	})

	return added, removed
}

// SetKeys replaces the keys of the echo. All are accepted, and frames are sent with the first.
func (r *Responder) SetKeys(keys [][]byte) {
	r.echo.setKeys(keys)
}

// Announcing reports whether owned addresses are still to be announced for the first time: work that can wait should
// not compete with that.
func (r *Responder) Announcing() bool {
	return r.published.isAnnouncing.Load()
}

// Kick makes Run read the links again. It never blocks.
func (r *Responder) Kick() {
	r.wake.Kick()
}

// markChanged reports a change of State.
func (r *Responder) markChanged() {
	r.state.version.Add(1)
	r.config.Changed()
}

// Run answers and announces until the context ends. It returns nil.
func (r *Responder) Run(ctx context.Context) error {
	var helpers sync.WaitGroup
	helpers.Go(func() { r.groups.run(ctx) })
	helpers.Go(func() { r.pollGateways(ctx) })
	r.loop(ctx)
	helpers.Wait()
	return nil
}

// loop owns the ports and their schedules.
func (r *Responder) loop(ctx context.Context) {
	k := newPortKeeper(r)
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
			k.handleNotice(n)
		case <-due.C:
		}

		due.Reset(k.sendDue())
		r.published.isAnnouncing.Store(k.announcing())
	}
}
