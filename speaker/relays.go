package main

import (
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// relayed returns the addresses whose older connections this node relays to another one.
func relayed(relays []lb.Relay) []netip.Addr {
	var out []netip.Addr
	for _, r := range relays {
		if r.Via.IsValid() {
			out = append(out, r.Address)
		}
	}
	return out
}

// relaysEnd returns the time until the next relay ends; 0 if none ends.
func relaysEnd(relays []lb.Relay, now time.Time) (next time.Duration) {
	for _, r := range relays {
		if !r.Until.IsZero() {
			next = sooner(next, max(r.Until.Sub(now), time.Millisecond))
		}
	}
	return next
}

// sooner returns the shorter of two times; 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
