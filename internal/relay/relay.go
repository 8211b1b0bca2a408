package relay

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// Desired is the whole desired state of a Relayer.
type Desired struct {
	// Relays, at most one for each address. State shows a relay without Via, but the kernel does not get it.
	Relays []lb.Relay
	// Expect creates the tables even without relays, so that an address that moves here does not wait for them.
	Expect bool
	// Speakers are the MACs of the links of all speakers: packets from them are not relayed again.
	Speakers map[link.MAC]bool
}

// Timers of a Relayer; a zero field means its default.
type Timers struct {
	// IdleTime is how long a relay lasts without a segment.
	IdleTime time.Duration
	// CheckInterval is the time between two checks of whether others changed the tables.
	CheckInterval time.Duration
	// AuditInterval is the time between two comparisons of the kernel's tables with the desired ones when nobody changed
	// them, less than IdleTime.
	AuditInterval time.Duration
	// RetryInterval is the wait after repeated refusals by the kernel, unless Set changes the relays.
	RetryInterval time.Duration
	// SetTimeout limits how long Set waits for new relays to be in force. A planned move can wait that long, because
	// the former owner still serves. An address without a living former owner has no relay.
	SetTimeout time.Duration
}

func (t Timers) withDefaults() Timers {
	t.IdleTime = cmp.Or(t.IdleTime, idleTime)
	return Timers{
		IdleTime:      t.IdleTime,
		CheckInterval: cmp.Or(t.CheckInterval, time.Second),
		AuditInterval: cmp.Or(t.AuditInterval, t.IdleTime/3),
		RetryInterval: cmp.Or(t.RetryInterval, 10*time.Second),
		SetTimeout:    cmp.Or(t.SetTimeout, 50*time.Millisecond),
	}
}

// Config is what a Relayer needs.
type Config struct {
	Log *slog.Logger
	// Links returns the node's links as they are; it must not block.
	Links  func() []link.Link
	Timers Timers
	// Changed is called when the result of Ended changes; it may be nil.
	Changed func()
}

// Relayer keeps the tables of this node.
type Relayer struct {
	log     *slog.Logger
	links   func() []link.Link
	timers  Timers
	changed func()
	wake    chan struct{}
	repairs atomic.Uint64

	mu sync.Mutex
	// desired is the argument of the last Set, nil before the first.
	desired *Desired
	// tried is closed after the first attempt to apply desired.
	tried chan struct{}
	// ended is the result of Ended.
	ended map[netip.Addr]time.Time

	// kernel guards the tables.
	kernel sync.Mutex
	tables []*table
}

// New returns a Relayer. It does not change the kernel.
func New(c Config) *Relayer {
	r := &Relayer{log: c.Log, links: c.Links, timers: c.Timers.withDefaults(), changed: c.Changed, wake: make(chan struct{}, 1)}
	for _, f := range families() {
		r.tables = append(r.tables, &table{family: f, Layout: f.layout(strict(), r.timers.IdleTime), status: newStatus()})
	}
	return r
}

// Set relays exactly this. New relays are in force when it returns, unless the kernel takes its time or
// refuses; what only goes is taken away behind it. It never fails: without relays
// an address moves all the same.
func (r *Relayer) Set(d Desired) {
	d.Relays, d.Speakers = slices.Clone(d.Relays), maps.Clone(d.Speakers)
	r.mu.Lock()
	same := r.desired != nil && r.desired.Expect == d.Expect && slices.Equal(r.desired.Relays, d.Relays) && maps.Equal(r.desired.Speakers, d.Speakers)
	more := !same && r.addsRelay(d)
	if !same {
		r.desired, r.tried = &d, make(chan struct{})
	}
	tried := r.tried
	r.mu.Unlock()
	if same {
		return
	}
	r.kick()
	if !more {
		return
	}
	timeout := time.NewTimer(r.timers.SetTimeout)
	defer timeout.Stop()
	select {
	case <-tried:
	case <-timeout.C:
		r.log.Warn("relays are not in force yet", "after", r.timers.SetTimeout)
	}
}

// addsRelay reports whether d has a relay that the last Set had not.
func (r *Relayer) addsRelay(d Desired) bool {
	if r.desired == nil {
		return len(d.Relays) > 0
	}
	had := map[lb.Relay]bool{}
	for _, one := range r.desired.Relays {
		one.Until = time.Time{}
		had[one] = true
	}
	return slices.ContainsFunc(d.Relays, func(want lb.Relay) bool {
		want.Until = time.Time{}
		return want.Via.IsValid() && !had[want]
	})
}

func (r *Relayer) kick() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Inherited is a relay that an earlier process left in the kernel.
type Inherited struct {
	// Via is the address of the former owner.
	Via netip.Addr
	// Ended: no packet used it for the idle time.
	Ended bool
}

// Inherited returns the relays that an earlier process left in the kernel, by relayed address.
func (r *Relayer) Inherited() map[netip.Addr]Inherited {
	out := map[netip.Addr]Inherited{}
	for _, t := range r.tables {
		seen := t.read() // empty if there is no table, or one of another layout
		for a, via := range seen.via() {
			_, lasts := seen.ends[addressKey(a)]
			out[a] = Inherited{via, !lasts}
		}
	}
	return out
}

// Ended returns the relays of the last Set that ended because no packet used them: relayed address to Start, which is zero
// for a relay of an earlier process.
func (r *Relayer) Ended() map[netip.Addr]time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// publishEnded makes the result of Ended from the tables.
func (r *Relayer) publishEnded() {
	ended := map[netip.Addr]time.Time{}
	for _, t := range r.tables {
		for key, c := range t.course {
			if a, ok := netip.AddrFromSlice([]byte(key)); ok && c.ended {
				ended[a] = c.start
			}
		}
	}
	r.mu.Lock()
	more, same := len(ended)-len(r.ended), maps.Equal(r.ended, ended)
	r.ended = ended
	r.mu.Unlock()
	if more > 0 {
		r.log.Info("relays ended", "addresses", more, "unusedFor", r.timers.IdleTime)
	}
	if !same && r.changed != nil {
		r.changed()
	}
}

// Remove deletes the tables. A concurrent Run does not restore them.
func (r *Relayer) Remove() error {
	r.mu.Lock()
	r.desired = nil
	r.mu.Unlock()
	r.kernel.Lock()
	defer r.kernel.Unlock()
	for _, t := range r.tables {
		if err := t.Delete(); err != nil {
			return fmt.Errorf("remove relays: %w", err)
		}
		generation := t.generation + 1
		t.status = newStatus()
		t.generation = generation
	}
	return nil
}
