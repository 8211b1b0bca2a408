// Package ipam decides which Service gets which address. It is pure: the
// addresses that are held stand in the State, and nothing is remembered between
// two calls. It never takes an address away because a pool was edited, and never
// gives one that stands in any other Service's status: an address that its
// holder gives up in this very decision is given to somebody else only in a later
// one, when the status shows it, so that statuses may be written in any order.
package ipam

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Result is what every Service is to hold, and what that leaves in the pools.
type Result struct {
	// Assignments has one for each of State.Services, in the same order.
	Assignments []Assignment
	// Pools has one for each of State.Pools, in the same order.
	Pools []Usage
}

// Assignment is what one Service is to hold.
type Assignment struct {
	Service lb.Key
	// Addresses are ordered as Service.Families; a family that has none is left out.
	Addresses []netip.Addr
	// Pools holds the name of each address's pool, or "" where the address was cut from its pool.
	Pools []string
	// Reason is Assigned when the Service has all it asks for, PartlyAssigned when it prefers two
	// families and has one. Any other says why it waits, or why what it holds is not what it asks for.
	Reason  lb.Reason
	Message string
}

// Assign decides for all Services. Elder Services come first; those that ask for
// an address by value come before those that take any.
func Assign(s lb.State) Result {
	a := newAssigner(s)
	order := make([]int, len(s.Services))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		x, y := &s.Services[i], &s.Services[j]
		if c := x.Created.Compare(y.Created); c != 0 {
			return c
		}
		return x.Key.Compare(y.Key)
	})

	a.keep(order)
	for _, byValue := range []bool{true, false} {
		for _, i := range order {
			if (len(s.Services[i].RequestedAddresses) > 0) == byValue {
				a.take(i)
			}
		}
	}
	result := Result{Assignments: make([]Assignment, len(s.Services))}
	for i := range s.Services {
		// Told only now, so that a reason speaks of what the others hold in the end.
		result.Assignments[i] = a.tell(i)
	}
	result.Pools = a.usage()
	return result
}

// assigner is one decision in the making.
type assigner struct {
	state lb.State
	// supplies are the pools in the order in which they are tried.
	supplies []*supply
	index    poolIndex
	// owners holds every address that may not be given: held, given, about to be left, or reserved.
	owners map[netip.Addr]lb.Key
	// held is what each Service has by now, by the index of its family; the zero Addr is none.
	held [][]netip.Addr
}

func newAssigner(s lb.State) *assigner {
	a := &assigner{
		state:  s,
		owners: make(map[netip.Addr]lb.Key, 2*len(s.Services)+len(s.Reserved)),
		held:   make([][]netip.Addr, len(s.Services)),
	}
	a.supplies = newSupplies(s.Pools)
	a.index = newPoolIndex(a.supplies)
	return a
}

// keep settles who holds what before anything is given: what stands in a status
// and fits the Service's families stays, with the elder where two hold the same.
func (a *assigner) keep(order []int) {
	for _, i := range order {
		svc := &a.state.Services[i]
		a.held[i] = make([]netip.Addr, len(svc.Families))
		if _, _, never := hopeless(svc); never {
			continue
		}
		for _, addr := range svc.Addresses {
			f := familyIndex(svc, addr)
			if _, taken := a.owners[addr]; f < 0 || taken || a.held[i][f].IsValid() {
				continue
			}
			a.held[i][f] = addr
			a.owners[addr] = svc.Key
		}
	}
	for _, i := range order {
		for _, addr := range a.state.Services[i].Addresses {
			a.reserve(addr, a.state.Services[i].Key)
		}
	}
	for addr, key := range a.state.Reserved {
		a.reserve(addr, key)
	}
}

func (a *assigner) reserve(addr netip.Addr, key lb.Key) {
	if _, taken := a.owners[addr]; !taken {
		a.owners[addr] = key
	}
}

// take gives the Service what it lacks, as far as that can be had.
func (a *assigner) take(i int) {
	svc := &a.state.Services[i]
	if _, _, never := hopeless(svc); never {
		return
	}
	got, _ := a.find(svc, a.held[i])
	for f, addr := range got {
		if addr.IsValid() {
			a.held[i][f] = addr
			a.owners[addr] = svc.Key
		}
	}
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

func familyIndex(svc *lb.Service, addr netip.Addr) int {
	if !addr.IsValid() {
		return -1
	}
	return slices.Index(svc.Families, lb.FamilyOf(addr))
}
