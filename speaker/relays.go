package main

import (
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
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

// relaysEnd returns how long until the next relay ends; 0 for never.
func relaysEnd(relays []lb.Relay, now time.Time) (next time.Duration) {
	for _, r := range relays {
		if !r.Until.IsZero() {
			next = sooner(next, max(r.Until.Sub(now), time.Millisecond))
		}
	}
	return next
}

// sooner returns the shorter time, of which 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// of is the plan as the next one in an epoch sees it; nil in another one.
func (p *planned) of(epoch uint64) *lb.Previous {
	if p == nil || p.Epoch != epoch {
		return nil
	}
	return &lb.Previous{Owners: p.Plan.Owners, Relays: p.Plan.Relays}
}
