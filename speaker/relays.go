package main

import (
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/relay"
)

// relays are the relays of this node, or keep them removed if relaying is off.
type relays struct {
	kept
	relayer *relay.Relayer
}

// newRelays returns relays that kick when some of them end.
func newRelays(log *slog.Logger, s settings, links func() []lb.Interface, kick func()) *relays {
	r := relay.New(relay.Config{Log: log, Links: links, Changed: kick})
	return &relays{kept{table: r, on: s.relay}, r}
}

// plan is plan.ForNode, without relays if relaying is off.
func (r *relays) plan(node string, s lb.State) plan.Plan {
	p := plan.ForNode(node, s)
	if !r.on {
		p.Relays = nil
	}
	return p
}

// set makes the kernel relay what is desired.
func (r *relays) set(d relay.Desired) error {
	if !r.on {
		return r.remove()
	}
	r.relayer.Set(d)
	return nil
}

// inherited returns the relays of an earlier run: relayed address to an address of the former owner.
func (r *relays) inherited() map[netip.Addr]netip.Addr {
	out := map[netip.Addr]netip.Addr{}
	for a, is := range r.kernels() {
		out[a] = is.Via
	}
	return out
}

// kernels returns what an earlier run left in the kernel.
func (r *relays) kernels() map[netip.Addr]relay.Inherited {
	if !r.on {
		return nil
	}
	return r.relayer.Inherited()
}

// lasting returns the addresses that the kernel relays since an earlier run.
func (r *relays) lasting() (out []netip.Addr) {
	for a, is := range r.kernels() {
		if !is.Ended {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// relayed returns the addresses whose older connections this node relays to another one.
func (r *relays) relayed(list []lb.Relay) []netip.Addr {
	ended := r.relayer.Ended()
	var out []netip.Addr
	for _, one := range list {
		start, over := ended[one.Address]
		over = over && (one.Start.IsZero() || one.Start.Equal(start))
		if one.Via.IsValid() && !over {
			out = append(out, one.Address)
		}
	}
	return out
}

func (r *relays) state() any {
	if !r.on {
		return "off"
	}
	return r.relayer.State()
}

// relaysEnd returns the time until the next relay ends because its address moved on; 0 if none does.
func relaysEnd(list []lb.Relay, now time.Time) (next time.Duration) {
	for _, r := range list {
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
