// Package ipam decides which Service and which FloatingIP gets which address. It
// is pure: the State holds the current addresses and the time, and no decision
// depends on an earlier one. A decision for 10,000 Services takes some 16 ms; with a
// Ledger the next one costs what changed.
//
// It never takes an address away because a pool was edited, or replaced by another one with the same addresses. It
// never assigns an address that is in the status of an object that may not share it. If a holder gives an address up in
// one decision, another Service gets it only in a later one, when the status shows the release: so statuses may be
// written in any order.
//
// Services that share an address keep it whatever the others do. If the edit of one makes it clash with
// the others, that one gives up the address: it no longer meets the terms recorded with its address.
package ipam

import (
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Result is the decision for every Service, FloatingIP and pool.
type Result struct {
	// Assignments has one for each of State.Services, in the same order.
	Assignments []*Assignment
	// FloatingIPs has one for each of State.FloatingIPs, in the same order.
	FloatingIPs []Floating
	// Keep lists the FloatingIPs to create for Services that asked to keep their addresses.
	Keep []Keep
	// Pools has one for each of State.Pools, in the same order.
	Pools []Usage
	// Recheck is when the next quarantine ends; zero when there is none.
	Recheck time.Time
}

// Held returns how many addresses of a pool are held.
func (r *Result) Held(pool string) int64 {
	for i := range r.Pools {
		if r.Pools[i].Pool == pool {
			return r.Pools[i].Held()
		}
	}
	return 0
}

// Assignment is the decision for one Service or FloatingIP.
type Assignment struct {
	Key lb.Key
	// Addresses are ordered as its families; a family without an address is left out.
	Addresses []netip.Addr
	// Pools holds the name of each address's pool, or "" if the address is retained.
	Pools []string
	// Record is written into the status: the pools that its addresses came from, or those that took over from these,
	// and its terms.
	Record lb.Origins
	// Awaits are the addresses that it waits for, because it had them before a restore or before it gave them up in a
	// clash. They are asked for again by the annotation that also carries the record through a backup.
	Awaits lb.Origins
	// Reason is Assigned if a Service has all it requests, PartlyAssigned if it prefers two families and has one; Bound
	// or Available of a FloatingIP. Any other is why it waits, or why it holds something else than it requests.
	Reason  lb.Reason
	Message string
}

// Assign decides for all objects. Older ones come first; requests for a
// particular address come before requests for any address.
func Assign(s lb.State) Result { return newAssigner(s).decide() }

// assigner is the work in progress of one decision.
type assigner struct {
	state lb.State
	// supplies are the pools in the order in which they are tried.
	supplies []*supply
	// index finds the pool that an address lies in.
	index  lb.Index[*supply]
	memory memory
	// living are the pools that are not being deleted.
	living map[string]bool
	// holders has every address that is not free: held, about to be released, or reserved.
	holders map[netip.Addr]holders
	// unanswered are the addresses of State.Claims.
	unanswered map[party][]netip.Addr
	// services and floating are the subjects, in the order of the State. Open are the Services that this decision is
	// about: all, or those that the last one did not settle.
	services, floating, open []*subject
	// shared has the addresses that are held under each key under which Services may share.
	shared map[string]*[]netip.Addr
	// barred and freed are the addresses that this decision barred others from, and that came free in it.
	barred, freed []netip.Addr
	// left: a holder left an address for another one.
	left bool
	// named are the FloatingIPs by their names, dedicated those of the Service that their specs name.
	named     map[lb.Key]*subject
	dedicated map[lb.Key][]*subject
	quota     map[quotaKey]int
}

func newAssigner(s lb.State) *assigner {
	a := &assigner{
		state:      s,
		quota:      map[quotaKey]int{},
		living:     map[string]bool{},
		shared:     map[string]*[]netip.Addr{},
		named:      map[lb.Key]*subject{},
		dedicated:  map[lb.Key][]*subject{},
		holders:    make(map[netip.Addr]holders, len(s.Services)+len(s.Reserved)),
		unanswered: map[party][]netip.Addr{},
	}
	for _, p := range s.Pools {
		a.living[p.Name] = !p.Deleting
	}
	a.supplies = newSupplies(s.Pools)
	a.index = lb.IndexOf(a.supplies, func(s *supply) []lb.Range { return s.Ranges })
	a.memory = newMemory(s, a.supplies, a.index)
	a.subjects()
	return a
}

// decide starts with what must not change and ends with what may be chosen freely.
func (a *assigner) decide() Result {
	services, floating := slices.SortedFunc(
		slices.Values(a.open),
		byAge,
	), slices.SortedFunc(
		slices.Values(a.floating),
		byAge,
	)
	freed := a.freed
	a.freed = nil
	a.keep(services, floating)
	for _, addr := range freed { // most are held again: then no pool is searched again from there
		p := a.index.Find(addr)
		if _, taken := a.holders[addr]; !taken && p != nil {
			p.regain(addr)
		}
	}
	a.left = false
	a.takeAll(floating, func(s *subject) bool { return len(s.RequestedAddresses) > 0 })
	// Services that claim a FloatingIP wait until it has all it can get, and has left what it moves from. What an
	// annotation asks back is a request like any other.
	a.takeAll(services, func(s *subject) bool {
		return (!s.joins && len(s.RequestedAddresses) > 0 || a.remembers(s)) && !a.mayClaim(s)
	})
	a.takeAll(floating, func(*subject) bool { return true })
	a.takeAll(services, func(s *subject) bool { return !s.joins && (a.mayClaim(s) || len(s.RequestedAddresses) > 0) })
	a.takeAll(services, func(s *subject) bool { return !s.joins })
	for a.takeAll(services, func(s *subject) bool { return s.joins }) {
		continue
	}
	for a.left { // a quota or a port, which those before it could not have
		a.left = false
		lacks := func(s *subject) bool { return len(s.missing(perFamily{})) > 0 }
		a.takeAll(floating, lacks)
		a.takeAll(services, lacks)
	}
	return a.result()
}

// byAge orders subjects: the older one first, of one age by key.
func byAge(x, y *subject) int {
	if c := x.Created.Compare(y.Created); c != 0 {
		return c
	}
	return x.Key.Compare(y.Key)
}

// takeAll gives the chosen subjects the available addresses that they are missing,
// and reports whether any subject got one.
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
	if s.fip != nil && s.fip.Deleting {
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

// result is called after all decisions, so that reasons refer to what the
// others finally hold.
func (a *assigner) result() Result {
	r := Result{Assignments: make([]*Assignment, len(a.services))}
	for _, s := range a.open {
		assigned := a.assignment(s)
		s.assignment, s.settled = &assigned, a.settles(s, assigned.Reason)
	}
	for i, s := range a.services {
		r.Assignments[i] = s.assignment
	}
	for _, s := range a.floating {
		r.FloatingIPs = append(r.FloatingIPs, a.floatingResult(s))
	}
	r.Keep = a.keeps()
	r.Pools = a.usage()
	r.Recheck = a.remember(r.Pools)
	return r
}
