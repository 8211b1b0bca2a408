package main

import (
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/relay"
)

// relayed are the addresses whose older connections another node serves.
func relayed(relays []lb.Relay) []netip.Addr {
	var out []netip.Addr
	for _, r := range relays {
		if r.Via.IsValid() {
			out = append(out, r.Address)
		}
	}
	return out
}

// handOn has the connections handed to former owners that these know, and runs again when a relay is to end.
func (w *syncer) handOn(p plan.Plan, now time.Time, speakers map[link.MAC]bool) {
	if w.relaysEnd != nil {
		w.relaysEnd.Stop()
	}
	var next time.Time
	for _, r := range p.Relays {
		if !r.Until.IsZero() && (next.IsZero() || r.Until.Before(next)) {
			next = r.Until
		}
	}
	if !next.IsZero() {
		w.relaysEnd = time.AfterFunc(next.Sub(now), w.kick)
	}
	w.relay.Set(relay.Desired{Relays: p.Relays, Expect: len(p.Owners) > 0, Speakers: speakers})
}

// of is the plan as the next one in an epoch sees it; nil in another one.
func (p *planned) of(epoch uint64) *lb.Before {
	if p == nil || p.Epoch != epoch {
		return nil
	}
	return &lb.Before{Owners: p.Plan.Owners, Relays: p.Plan.Relays}
}
