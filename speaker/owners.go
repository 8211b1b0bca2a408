package main

import (
	"context"
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/members"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

const (
	// askInterval is how often a node asks the new owners of the addresses that it hands over.
	askInterval = 200 * time.Millisecond
	// maxAsked is how many addresses one member is asked about at a time; all others have their turn.
	maxAsked = 2048
)

// owners asks other speakers which addresses they own, with the key of the membership, and answers them: on private VLANs, and
// where a switch filters, no speaker hears the ARP or NDP of another.
type owners struct {
	layer2 interface {
		Handing() []netip.Addr
		Owns(addrs []netip.Addr, leaves bool) []bool
		Owned(addrs []netip.Addr)
	}
	// ask asks a member: see members.Ask.
	ask func(member string, addrs []netip.Addr, leaves bool)
	// plan returns the last plan.
	plan func() plan.Plan
	// turns counts the questions, so that addresses take turns.
	turns int
}

// run asks until ctx ends.
func (o *owners) run(ctx context.Context) error {
	again := time.NewTicker(askInterval)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			o.leave()
		}
	}
}

// leave asks the new owner of each address that is handed over whether it has it.
func (o *owners) leave() {
	handing := o.layer2.Handing()
	if len(handing) == 0 {
		return
	}
	to, byOwner := o.plan().Owners, map[string][]netip.Addr{}
	for _, a := range handing {
		byOwner[to[a]] = append(byOwner[to[a]], a)
	}
	o.turns++
	for owner, addrs := range byOwner {
		o.ask(owner, turn(addrs, o.turns), true)
	}
}

// turn returns maxAsked of the addresses, other ones in each turn.
func turn(addrs []netip.Addr, n int) []netip.Addr {
	if len(addrs) <= maxAsked {
		return addrs
	}
	start := n * maxAsked % len(addrs)
	out := addrs[start:min(start+maxAsked, len(addrs))]
	return append(out[:len(out):len(out)], addrs[:maxAsked-len(out)]...)
}

// Owns implements members.Owner.
func (o *owners) Owns(addrs []netip.Addr, leaves bool) ([]bool, time.Duration) {
	return o.layer2.Owns(addrs, leaves), 0
}

// Answered implements members.Owner.
func (o *owners) Answered(a members.Answer) {
	var owned []netip.Addr
	for i, owns := range a.Owns {
		if owns {
			owned = append(owned, a.Addresses[i])
		}
	}
	o.layer2.Owned(owned)
}
