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
	// Relays are the relays, by relayed address. A relay without Via has no effect in the kernel.
	Relays lb.Map[netip.Addr, lb.Relay]
	// Expect creates the tables even without relays, so an address that moves here need not wait for them.
	Expect bool
	// Speakers are the MACs of the links of all speakers. Packets from them are not relayed again. The map must not be
	// changed.
	Speakers map[lb.MAC]bool
}

// Config configures a Relayer.
type Config struct {
	Log *slog.Logger
	// Links returns the current links of the node; it must not block.
	Links func() []lb.Interface
	// IdleTime is the time without a segment after which a relay ends; by default 15 minutes. A table is audited three
	// times in an idle time.
	IdleTime time.Duration
	// Changed is called when the result of Ended changes; it may be nil.
	Changed func()
}

// Relayer keeps the tables of this node.
type Relayer struct {
	config Config
	tables []*table

	mu sync.Mutex
	// desired is the argument of the last Set; nil before the first.
	desired *Desired
	// indexes are the indexes of the links that may carry relays, by name.
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

// Try asks the kernel whether it accepts the table of a family, and changes nothing.
func Try(name lb.Family) error {
	all := families()
	i := slices.IndexFunc(all, func(f *family) bool { return f.name == name })
	return all[i].layout(idleTime).Try()
}

// Set relays exactly the desired addresses. New relays are in force when it returns, unless the kernel refuses them. It
// returns no error, because an address moves without relays too.
func (r *Relayer) Set(d Desired) {
	indexes := make(map[string]int)
	for _, l := range r.config.Links() {
		if l.CanAnnounce() {
			indexes[l.Name] = l.Index
		}
	}

	r.mu.Lock()
	same := r.desired != nil && r.desired.equal(d) && maps.Equal(r.indexes, indexes)
	if same {
		r.desired = &d // the next comparison with the same map is cheap
	}

	r.mu.Unlock()
	if !same {
		r.apply(&d, indexes)
	}
}

// equal reports whether two desired states are the same.
func (d *Desired) equal(other Desired) bool {
	sameSpeakers := lb.SameMap(d.Speakers, other.Speakers) || maps.Equal(d.Speakers, other.Speakers)
	return sameSpeakers && d.Expect == other.Expect && d.Relays.Same(other.Relays)
}

// apply makes the tables equal to the desired state. It holds the locks of all tables: a concurrent audit would take
// the new state for damage.
func (r *Relayer) apply(d *Desired, indexes map[string]int) {
	for _, t := range r.tables {
		t.Lock()
		defer t.Unlock()
	}

	r.mu.Lock()
	r.desired = d
	r.indexes = indexes
	r.mu.Unlock()
	for _, t := range r.tables {
		_ = t.Apply(false) // it logs, and Run retries
	}
}

// Run keeps the relays in force until the context ends. Then it removes the relays with an Until, which the next
// process would not know. The others stay in force.
func (r *Relayer) Run(ctx context.Context) error {
	var tasks errgroup.Group
	for _, t := range r.tables {
		tasks.Go(func() error { return t.Run(ctx) })
	}

	err := tasks.Wait()
	r.mu.Lock()
	d, indexes := r.desired, r.indexes
	r.mu.Unlock()
	if d == nil {
		return err
	}

	remaining := *d
	for address, relay := range d.Relays.All() {
		if !relay.Until.IsZero() {
			remaining.Relays = remaining.Relays.Without(address)
		}
	}

	r.apply(&remaining, indexes)
	return err
}

// Inherited is a relay that an earlier process left in the kernel.
type Inherited struct {
	// Via is the address of the former owner.
	Via netip.Addr
	// Ended reports whether the relay has ended, because no packet used it for the idle time.
	Ended bool
}

// Inherited returns the relays that an earlier process left in the kernel, by relayed address.
func (r *Relayer) Inherited() map[netip.Addr]Inherited {
	out := map[netip.Addr]Inherited{}
	for _, t := range r.tables {
		content, err := t.layout.Read()
		if err != nil {
			continue // there is no table, or it has another layout
		}

		inUse := make(map[string]bool)
		for _, e := range content.Elements {
			if e.Set == usedSet {
				inUse[e.Key] = true
			}
		}

		for _, e := range content.Elements {
			address, isAddress := netip.AddrFromSlice([]byte(e.Key))
			via, isVia := netip.AddrFromSlice([]byte(e.Value))
			if e.Set == relaysMap && isAddress && isVia {
				out[address] = Inherited{Via: via, Ended: !inUse[e.Key]}
			}
		}
	}

	return out
}

// Ended returns the relays of the last Set that have ended because no packet used them. It maps the relayed address to
// the relay's Start, which is zero for a relay of an earlier process.
func (r *Relayer) Ended() map[netip.Addr]time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// publishEnded updates the result of Ended from the tables.
func (r *Relayer) publishEnded() {
	ended := map[netip.Addr]time.Time{}
	r.mu.Lock()
	for _, t := range r.tables {
		for address, life := range t.lifetimes {
			if life.ended {
				ended[address] = life.start
			}
		}
	}

	more := len(ended) - len(r.ended)
	same := maps.Equal(r.ended, ended)
	r.ended = ended
	r.mu.Unlock()
	if more > 0 {
		r.config.Log.Info("relays ended", "addresses", more, "unusedFor", r.config.IdleTime)
	}

	if !same && r.config.Changed != nil {
		r.config.Changed()
	}
}

// Remove deletes the tables. A concurrent Run does not restore them; the next Set does.
func (r *Relayer) Remove() (err error) {
	r.mu.Lock()
	r.desired = nil
	r.mu.Unlock()
	for _, t := range r.tables {
		err = errors.Join(err, t.Remove())
	}

	return err
}
