package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// unchanged are Services that a decision may leave out. Each of them, as its
// status says, holds all it requests, shares with nobody, and has its addresses
// from pools that exist and are not being deleted. A decision keeps what is in
// statuses before it assigns anything. So the assignment of such a Service stays
// the same whatever happens to the others, unless one of them refers to its
// address, its id or its name. It affects the others only by the sums kept here.
type unchanged struct {
	index poolIndex
	// The entries by address, and by the UID that others may name to share it.
	byAddress map[netip.Addr]*entry
	byID      map[string]*entry
	// taken are the addresses that cannot be assigned.
	taken spans
	// quota counts them by namespace; assigned and blocked by pool, as in usage.
	quota             map[quotaKey]int
	assigned, blocked tally
}

// entry is the assignment of a Service, with what the Service was read from.
type entry struct {
	*Assignment
	uid, joins string
	revision   any
}

func newUnchanged(pools []lb.Pool) *unchanged {
	return &unchanged{
		index:     newPoolIndex(newSupplies(pools)),
		byAddress: map[netip.Addr]*entry{}, byID: map[string]*entry{},
		quota: map[quotaKey]int{}, assigned: make(tally, len(pools)), blocked: make(tally, len(pools)),
	}
}

// is reports whether a Service is still the one that this entry was made for, without a Problem, which others may have made.
func (h *entry) is(svc *lb.Service) bool {
	return h.revision == svc.Revision && h.joins == svc.LoadBalancerID && svc.Problem == nil
}

func (x *unchanged) add(h *entry) {
	for _, addr := range h.Addresses {
		x.byAddress[addr] = h
		x.taken.add(addr)
		x.count(h, addr, 1)
	}
	if h.uid != "" {
		x.byID[h.uid] = h
	}
}

func (x *unchanged) remove(h *entry) {
	for _, addr := range h.Addresses {
		delete(x.byAddress, addr)
		x.taken.remove(addr)
		x.count(h, addr, -1)
	}
	delete(x.byID, h.uid)
}

func (x *unchanged) count(h *entry, addr netip.Addr, n int) {
	pool := x.index.find(addr)
	of := quotaKey{pool.Name, h.Service.Namespace, lb.FamilyOf(addr)}
	if x.quota[of] += n; x.quota[of] == 0 {
		delete(x.quota, of) // namespaces come and go
	}
	x.assigned.add(pool, addr, n)
	if !pool.avoids(addr) {
		x.blocked.add(pool, addr, n)
	}
}

// mustNotHold panics if the decision gave the subject an address of an unchanged Service.
func (x *unchanged) mustNotHold(s *subject) {
	for _, addr := range s.held {
		if h, held := x.byAddress[addr]; held {
			panic(fmt.Sprintf("ipam: %s was given to %s, though Service %s holds it", addr, s.party(), h.Service))
		}
	}
}

// carriable reports whether later decisions may leave this Service out.
func (a *assigner) carriable(s *subject, assigned *Assignment) bool {
	switch {
	case s.Revision == nil || assigned.Reason != lb.Assigned || !slices.Equal(s.Addresses, s.held):
		return false
	case s.SharingKey != "" || s.joins:
		return false
	case s.Renew || s.KeepFloatingIP || a.claimable.by(s):
		return false
	}
	for f, addr := range s.held {
		pool := a.index.find(addr)
		switch {
		case s.family(addr) != f || !a.holders[addr].only(s):
			return false
		case pool == nil || pool.Deleting || s.RequestedPool != "" && s.RequestedPool != pool.Name:
			return false
		}
	}
	return !slices.ContainsFunc(s.RequestedAddresses, func(want netip.Addr) bool { return !slices.Contains(s.held, want) })
}

// only reports whether the Service alone holds or claims the address.
func (t holders) only(s *subject) bool {
	return t.first == s.number && len(t.more) == 0 && t.floating == 0 && t.claimant == nil
}
