package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// settled are Services that a decision may leave out. Each of them holds all it
// asks for, as its status says, alone, and from pools that are there and stay. A
// decision keeps what stands in statuses before it gives anything, so such a
// Service comes out of it as it went in, whatever becomes of the others, unless one
// of them speaks of its address, its id or its name. To the others it matters by
// what is summed up here, and by nothing else.
type settled struct {
	index poolIndex
	// holders by address, and by the UID that others may name to share it.
	holders map[netip.Addr]*holder
	ids     map[string]*holder
	// taken are the addresses that cannot be given.
	taken spans
	// quota counts them by namespace, assigned and blocked by pool as usage does.
	quota             map[quotaKey]int
	assigned, blocked tally
}

// holder is a Service that is settled, and as what it was read.
type holder struct {
	*Assignment
	uid, revision string
}

func newSettled(pools []lb.Pool) *settled {
	return &settled{
		index:   newPoolIndex(newSupplies(pools)),
		holders: map[netip.Addr]*holder{}, ids: map[string]*holder{},
		quota: map[quotaKey]int{}, assigned: tally{}, blocked: tally{},
	}
}

// is reports whether a Service is the one that settled, unchanged. Where the cluster's
// store was put back to an earlier day, a Revision may come twice: an address must not
// be lost even then, so its addresses are looked at as well.
func (h *holder) is(svc *lb.Service) bool {
	return h.revision == svc.Revision && h.uid == svc.UID && slices.Equal(h.Addresses, svc.Addresses)
}

func (x *settled) add(h *holder) {
	for _, addr := range h.Addresses {
		x.holders[addr] = h
		x.taken.add(addr)
		x.count(h, addr, 1)
	}
	if h.uid != "" {
		x.ids[h.uid] = h
	}
}

func (x *settled) remove(h *holder) {
	for _, addr := range h.Addresses {
		delete(x.holders, addr)
		x.taken.remove(addr)
		x.count(h, addr, -1)
	}
	delete(x.ids, h.uid)
}

func (x *settled) count(h *holder, addr netip.Addr, n int) {
	pool, family := x.index.find(addr), lb.FamilyOf(addr)
	of := quotaKey{pool.Name, h.Service.Namespace, family}
	if x.quota[of] += n; x.quota[of] == 0 {
		delete(x.quota, of) // namespaces come and go
	}
	x.assigned[placeFamily{pool.place, family}] += int64(n)
	if !pool.avoids(addr) {
		x.blocked[placeFamily{pool.place, family}] += int64(n)
	}
}

// mustLack panics where a subject of the decision came to an address that is held.
func (x *settled) mustLack(s *subject) {
	for _, addr := range s.held {
		if h, held := x.holders[addr]; held {
			panic(fmt.Sprintf("ipam: %s was given to %s, though Service %s holds it", addr, s.party(), h.Service))
		}
	}
}

// settles reports whether a Service of this decision may be left out of later ones.
func (a *assigner) settles(s *subject, told *Assignment) bool {
	switch {
	case s.Revision == "" || told.Reason != lb.Assigned || !slices.Equal(s.Addresses, s.held):
		return false
	case s.SharingKey != "" || s.joins:
		return false
	case s.Renew || s.KeepFloatingIP || a.claimable.by(s):
		return false
	}
	for f, addr := range s.held {
		pool := a.index.find(addr)
		switch {
		case s.family(addr) != f || !a.owners[addr].only(s):
			return false
		case pool == nil || pool.Deleting || s.RequestedPool != "" && s.RequestedPool != pool.Name:
			return false
		}
	}
	return !slices.ContainsFunc(s.RequestedAddresses, func(want netip.Addr) bool { return !slices.Contains(s.held, want) })
}

// only reports whether nobody but the Service has to do with the address.
func (t tenancy) only(s *subject) bool {
	return t.first == s.number && len(t.more) == 0 && t.floating == 0 && t.foreign == (party{})
}
