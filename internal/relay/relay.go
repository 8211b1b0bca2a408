package relay

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Desired is the whole desired state of a Relayer.
type Desired struct {
	// Relays of addresses. State shows a relay without Via, but the kernel does not get it.
	Relays lb.Map[netip.Addr, lb.Relay]
	// Expect creates the tables even without relays, so that an address that moves here does not wait for them.
	Expect bool
	// Speakers are the MACs of the links of all speakers: packets from them are not relayed again. The map must not be
	// changed.
	Speakers map[lb.MAC]bool
}

// Config is what a Relayer needs.
type Config struct {
	Log *slog.Logger
	// Links returns the node's links as they are; it must not block.
	Links func() []lb.Interface
	// IdleTime is how long a relay lasts without a segment; by default 15 minutes. A table is audited three times
	// meanwhile.
	IdleTime time.Duration
	// Changed is called when the result of Ended changes; it may be nil.
	Changed func()
}

// Relayer keeps the tables of this node.
type Relayer struct {
	config Config
	tables []*table

	mu sync.Mutex
	// desired is the argument of the last Set, nil before the first; indexes are those of the links that may carry
	// relays.
	desired *Desired
	indexes map[string]int
	// ended is the result of Ended.
	ended map[netip.Addr]time.Time
}

// New returns a Relayer. It does not change the kernel.
func New(c Config) *Relayer {
	c.IdleTime = cmp.Or(c.IdleTime, idleTime)
	r := &Relayer{config: c}
	for _, f := range families() {
		r.tables = append(r.tables, newTable(r, f))
	}
	return r
}

// Try has the kernel check the table of a family without an effect.
func Try(of lb.Family) error {
	all := families()
	return all[slices.IndexFunc(all, func(f *family) bool { return f.name == of })].layout(idleTime).Try()
}

// Set relays exactly this. New relays are in force when it returns, unless the kernel refuses. It never fails: without
// relays an address moves all the same.
func (r *Relayer) Set(d Desired) {
	indexes := make(map[string]int)
	for _, l := range r.config.Links() {
		if l.CanAnnounce() {
			indexes[l.Name] = l.Index
		}
	}

	r.mu.Lock()
	same := r.desired != nil && r.desired.Expect == d.Expect && r.desired.Relays.Same(d.Relays) &&
		(lb.SameMap(r.desired.Speakers, d.Speakers) ||
			maps.Equal(r.desired.Speakers, d.Speakers)) &&
		maps.Equal(r.indexes, indexes)
	if same {
		r.desired = &d // which costs nothing to compare when it comes again
	}

	r.mu.Unlock()
	if !same {
		r.apply(&d, indexes)
	}
}

// apply makes the tables hold what is desired. An audit meanwhile would take that for damage.
func (r *Relayer) apply(d *Desired, indexes map[string]int) {
	for _, t := range r.tables {
		t.Lock()
		defer t.Unlock()
	}

	r.mu.Lock()
	r.desired, r.indexes = d, indexes
	r.mu.Unlock()
	for _, t := range r.tables {
		_ = t.Apply(false) // it logs, and Run retries
	}
}

// Run keeps the relays in force until the context ends. They then stay in force, except for those with an end: the next
// process would not know it.
func (r *Relayer) Run(ctx context.Context) error {
	var tasks errgroup.Group
	for _, t := range r.tables {
		tasks.Go(func() error { return t.Run(ctx) })
	}

	err := tasks.Wait()
	r.mu.Lock()
	d, indexes := r.desired, r.indexes
	r.mu.Unlock()
	if d != nil {
		stays := *d
		for a, one := range d.Relays.All() {
			if !one.Until.IsZero() {
				stays.Relays = stays.Relays.Without(a)
			}
		}

		r.apply(&stays, indexes)
	}

	return err
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
		seen, err := t.layout.Read()
		if err != nil {
			continue // there is no table, or one of another layout
		}

		lasts := make(map[string]bool)
		for _, m := range seen.Elements {
			lasts[m.Key] = lasts[m.Key] || m.Set == usedSet
		}

		for _, m := range seen.Elements {
			address, ok := netip.AddrFromSlice([]byte(m.Key))
			via, viaOK := netip.AddrFromSlice([]byte(m.Value))
			if m.Set == relaysMap && ok && viaOK {
				out[address] = Inherited{via, !lasts[m.Key]}
			}
		}
	}

	return out
}

// Ended returns the relays of the last Set that ended because no packet used them: relayed address to Start, which is
// zero for a relay of an earlier process.
func (r *Relayer) Ended() map[netip.Addr]time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// publishEnded makes the result of Ended from the tables.
func (r *Relayer) publishEnded() {
	ended := map[netip.Addr]time.Time{}
	r.mu.Lock()
	for _, t := range r.tables {
		for a, c := range t.course {
			if c.ended {
				ended[a] = c.start
			}
		}
	}

	more, same := len(ended)-len(r.ended), maps.Equal(r.ended, ended)
	r.ended = ended
	r.mu.Unlock()
	if more > 0 {
		r.config.Log.Info("relays ended", "addresses", more, "unusedFor", r.config.IdleTime)
	}

	if !same && r.config.Changed != nil {
		r.config.Changed()
	}
}

// Remove deletes the tables. A concurrent Run does not restore them.
func (r *Relayer) Remove() (err error) {
	r.mu.Lock()
	r.desired = nil
	r.mu.Unlock()
	for _, t := range r.tables {
		err = errors.Join(err, t.Remove())
	}

	return err
}
