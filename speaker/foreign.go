package main

import (
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// foreignInterval is the least time between two reads of the kernel's neighbour table.
const foreignInterval = 10 * time.Second

// foreign finds the machines, gateways among them, whose addresses a pool covers by mistake. One goroutine uses it.
type foreign struct {
	at    time.Time
	found []lb.Neighbour
}

// find returns these machines as of the last ten seconds.
func (f *foreign) find(w *syncer) []lb.Neighbour {
	last, m := w.last.Load(), w.membership.members.Load()
	if last == nil || m == nil || time.Since(f.at) < foreignInterval {
		return f.found
	}
	f.at = time.Now()
	nodes := macsOf(m.Metadata())
	found, err := link.Neighbours(w.links.Links(), func(a netip.Addr) bool { return unassigned(last.Plan, a) })
	if err != nil {
		w.log.Debug("cannot look for foreign machines in pools", "error", err)
		return f.found
	}
	f.found = slices.DeleteFunc(found, func(n lb.Neighbour) bool { return nodes[n.MAC] })
	return f.found
}

// unassigned reports whether a pool covers an address that no Service and no node has.
func unassigned(p plan.Plan, a netip.Addr) bool {
	_, has := slices.BinarySearchFunc(p.Filter.Frontends, a, func(f lb.Frontend, a netip.Addr) int { return f.Address.Compare(a) })
	return !has && slices.ContainsFunc(p.Filter.Guarded, func(r lb.Range) bool { return r.Contains(a) })
}
