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
	// CheckInterval is the time between two comparisons of the kernel's tables with the desired ones.
	CheckInterval time.Duration
	// RenewInterval is the time between two renewals of the elements' timeouts.
	RenewInterval time.Duration
	// RetryInterval is the wait after repeated refusals by the kernel, unless Set changes the relays.
	RetryInterval time.Duration
	// SetTimeout limits how long Set waits for new relays to be in force. A planned move can wait that long, because
	// the former owner still serves. An address without a living former owner has no relay.
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
	// desired is the argument of the last Set, nil before the first.
	desired *Desired
	// tried is closed after the first attempt to apply desired.
	tried chan struct{}

	// kernel guards the tables.
	kernel sync.Mutex
	tables []*table
}

// New returns a Relayer. It does not change the kernel.
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

// Inherited returns the relays that an earlier process left in the kernel: relayed address to address of the former owner.
func (r *Relayer) Inherited() map[netip.Addr]netip.Addr {
	out := map[netip.Addr]netip.Addr{}
	for _, t := range r.tables {
		is, err := t.read()
		if err != nil {
			continue // no table, or not one of this layout
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
		t.status = status{generation: t.generation + 1}
	}
	return nil
}

// content returns the desired elements of the family's table, given the indexes of links by name.
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
