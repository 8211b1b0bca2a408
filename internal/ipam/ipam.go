// Package ipam decides which Service and which FloatingIP gets which address. It
// is pure: the addresses that are held stand in the State, the time too, and no
// decision depends on an earlier one. A Ledger remembers of the last one for whom
// the next need not be made again, and comes to the same.
//
// It never takes an address away because a pool was edited, and never gives one
// that stands in the status of somebody who may not share it: an address that its
// holder gives up in this very decision is given to somebody else only in a later
// one, when the status shows it, so that statuses may be written in any order.
package ipam

import (
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Result is what everybody is to hold, and what that leaves in the pools.
type Result struct {
	// Assignments has one for each of State.Services, in the same order. Results of one Ledger share them.
	Assignments []*Assignment
	// FloatingIPs has one for each of State.FloatingIPs, in the same order.
	FloatingIPs []Floating
	// Keep lists the FloatingIPs to create for Services that wish to keep their addresses.
	Keep []Keep
	// Pools has one for each of State.Pools, in the same order.
	Pools []Usage
	// Recheck is when the next quarantine ends; zero when there is none.
	Recheck time.Time
}

// Assignment is what one Service is to hold.
type Assignment struct {
	Service lb.Key
	// Addresses are ordered as Service.Families; a family that has none is left out.
	Addresses []netip.Addr
	// Pools holds the name of each address's pool, or "" where the address was cut from its pool.
	Pools []string
	// Origins is what the Service is to remember of where its addresses came from; with them stands
	// what it had before a restore and still waits for.
	Origins []Origin
	// Reason is Assigned when the Service has all it asks for, PartlyAssigned when it prefers two
	// families and has one. Any other says why it waits, or why what it holds is not what it asks for.
	Reason  lb.Reason
	Message string
}

// Origin is the pool that an address came from.
type Origin struct {
	Address netip.Addr
	Pool    string
}

// Assign decides for all. Elders come first; those that ask for an address by
// value come before those that take any.
func Assign(s lb.State) Result {
	all := make([]int, len(s.Services))
	for i := range all {
		all[i] = i
	}
	a := newAssigner(s, all, newSettled(nil))
	a.decide()
	return a.result()
}

// assigner is one decision in the making.
type assigner struct {
	state lb.State
	// supplies are the pools in the order in which they are tried.
	supplies []*supply
	index    poolIndex
	memory   memory
	// settled are the Services that are left out.
	settled *settled
	// owners holds every address that may not simply be given: held, about to be left, or reserved.
	owners map[netip.Addr]tenancy
	// services and floating are the subjects, in the order of the State: the Services that are not
	// settled, and all FloatingIPs.
	services, floating []subject
	claimable          claimable
	// shared holds what is held under each key that somebody might share.
	shared map[string]*ring
	quota  map[quotaKey]int
}

// newAssigner prepares to decide for all FloatingIPs and for those of the Services at the places, which
// ascend. All other Services are settled.
func newAssigner(s lb.State, places []int, settled *settled) *assigner {
	a := &assigner{
		state:   s,
		settled: settled,
		owners:  make(map[netip.Addr]tenancy, 2*len(places)+len(s.Reserved)),
		shared:  map[string]*ring{},
		quota:   map[quotaKey]int{},
	}
	a.supplies = newSupplies(s.Pools)
	a.index = newPoolIndex(a.supplies)
	a.memory = newMemory(s.Pools, a.index)
	a.subjects(places)
	return a
}

// decide goes from what must not change to what may be chosen.
func (a *assigner) decide() {
	services, floating := elderFirst(a.services), elderFirst(a.floating)
	a.keep(services, floating)
	a.takeAll(floating, func(s *subject) bool { return len(s.RequestedAddresses) > 0 })
	// Who claims a FloatingIP waits until that has what it can have.
	a.takeAll(services, func(s *subject) bool { return s.remembers() && !a.claimable.by(s) })
	a.takeAll(services, func(s *subject) bool { return !s.joins && len(s.RequestedAddresses) > 0 && !a.claimable.by(s) })
	a.takeAll(floating, func(*subject) bool { return true })
	a.takeAll(services, func(s *subject) bool { return !s.joins && (a.claimable.by(s) || len(s.RequestedAddresses) > 0) })
	a.takeAll(services, func(s *subject) bool { return !s.joins })
	for a.takeAll(services, func(s *subject) bool { return s.joins }) {
		continue
	}
}

// elderFirst returns the subjects by age, then by key.
func elderFirst(subjects []subject) []*subject {
	out := make([]*subject, len(subjects))
	for i := range subjects {
		out[i] = &subjects[i]
	}
	slices.SortFunc(out, byAge)
	return out
}

func byAge(x, y *subject) int {
	if c := x.Created.Compare(y.Created); c != 0 {
		return c
	}
	return x.Key.Compare(y.Key)
}

// takeAll gives the chosen subjects what they lack, as far as that can be had,
// and reports whether anybody got anything.
func (a *assigner) takeAll(order []*subject, chosen func(*subject) bool) bool {
	any := false
	for _, s := range order {
		if chosen(s) && a.take(s) {
			any = true
		}
	}
	return any
}

func (a *assigner) take(s *subject) bool {
	if _, _, never := hopeless(s.Service); never || s.floating > 0 && a.state.FloatingIPs[s.floating-1].Deleting {
		return false
	}
	got, _ := a.find(s)
	any := false
	for f, addr := range got {
		if addr.IsValid() {
			a.vacate(s, s.held[f])
			s.held[f] = addr
			a.hold(s, addr)
			any = true
		}
	}
	return any
}

// result is told only when all is decided, so that a reason speaks of what the
// others hold in the end. It leaves the settled Services' assignments out.
func (a *assigner) result() Result {
	r := Result{Assignments: make([]*Assignment, len(a.state.Services))}
	for i := range a.services {
		s := &a.services[i]
		told := a.tell(s)
		r.Assignments[s.place] = &told
	}
	for i := range a.floating {
		r.FloatingIPs = append(r.FloatingIPs, a.tellFloating(&a.floating[i]))
	}
	r.Keep = a.keeps()
	r.Pools = a.usage()
	r.Recheck = a.remember(r.Pools)
	return r
}

// hopeless says why a Service can hold nothing at all.
func hopeless(svc *lb.Service) (lb.Reason, string, bool) {
	switch {
	case len(svc.Families) == 0:
		return lb.NoClusterIP, "the Service has no cluster IP, so that nothing could be delivered: a headless Service cannot be served", true
	case svc.FamilyPolicy == lb.RequireDualStack && len(svc.Families) < 2:
		return lb.DualStackUnmet, "ipFamilyPolicy is RequireDualStack, but the Service has an " + string(svc.Families[0]) +
			" cluster IP only: choose PreferDualStack, or make the cluster dual-stack", true
	}
	return "", "", false
}
