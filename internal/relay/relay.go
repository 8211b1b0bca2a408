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
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Desired is what a Relayer is told, as a whole.
type Desired struct {
	// Relays, at most one of each address. One without a way is only shown.
	Relays []lb.Relay
	// Expect has the tables made although nothing is relayed: addresses may move here, and must not wait for them.
	Expect bool
	// Speakers are the MACs of the links of all speakers: what comes from one is not relayed again.
	Speakers map[link.MAC]bool
}

// Timers of a Relayer; a zero field means its default.
type Timers struct {
	// CheckInterval is how often the kernel's tables are compared with what they are to hold.
	CheckInterval time.Duration
	// RenewInterval is how often the members get their whole time again.
	RenewInterval time.Duration
	// RetryInterval is the wait after the kernel refused time and again, unless something else is set.
	RetryInterval time.Duration
	// SetTimeout is how long Set waits for new relays to be in force. A planned move can wait that long, for the
	// former owner serves meanwhile; what nobody serves has no relay.
	SetTimeout time.Duration
}

func (t Timers) withDefaults() Timers {
	return Timers{
		CheckInterval: cmp.Or(t.CheckInterval, time.Second),
		RenewInterval: cmp.Or(t.RenewInterval, relayTimeout/3),
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
}

// Relayer keeps the tables of this node.
type Relayer struct {
	log     *slog.Logger
	links   func() []link.Link
	timers  Timers
	wake    chan struct{}
	repairs atomic.Uint64

	mu sync.Mutex
	// desired is what was set last, nil before.
	desired *Desired
	// tried is closed when what was set last has been tried.
	tried chan struct{}

	// kernel guards the tables, and what follows.
	kernel sync.Mutex
	tables []*table
}

// New returns a Relayer that has not touched the kernel yet.
func New(c Config) *Relayer {
	r := &Relayer{log: c.Log, links: c.Links, timers: c.Timers.withDefaults(), wake: make(chan struct{}, 1)}
	for _, f := range families() {
		r.tables = append(r.tables, &table{family: f, Layout: f.layout(strict())})
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

// addsRelay reports whether something is to be relayed that was not before.
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

// Inherited returns what an earlier run of the speaker left in the kernel: an address, and that of its former owner.
func (r *Relayer) Inherited() map[netip.Addr]netip.Addr {
	out := map[netip.Addr]netip.Addr{}
	for _, t := range r.tables {
		is, err := t.read()
		if err != nil {
			continue // there is none, or it is of no use
		}
		for at, value := range is {
			address, ok := netip.AddrFromSlice([]byte(at.key))
			via, viaOK := netip.AddrFromSlice([]byte(value))
			if at.set == relaysMap && ok && viaOK {
				out[address] = via
			}
		}
	}
	return out
}

// Remove deletes the tables and nothing else. Run, if it runs still, leaves it so.
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
		t.status = status{generation: t.generation + 1}
	}
	return nil
}

// content is what the family's table is to hold, given the indexes of links by name.
func (d *Desired) content(f *family, indexes map[string]int) content {
	out := content{}
	for _, one := range d.Relays {
		index, known := indexes[one.Link]
		if !f.Has(one.Address) || !f.Has(one.Via) || !known {
			continue
		}
		key := string(one.Address.AsSlice())
		out[elementKey{relaysMap, key}] = string(one.Via.WithZone("").AsSlice())
		out[elementKey{linksMap, key}] = string(nft.Native(uint32(index)))
	}
	for mac := range d.Speakers {
		out[elementKey{speakersSet, string(mac[:])}] = ""
	}
	return out
}
