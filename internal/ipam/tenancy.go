package ipam

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// tenancy is who has to do with an address.
type tenancy struct {
	// floating is the number of the FloatingIP that owns it, 0 for none.
	floating int32
	// first is the number of the first Service that holds it, 0 for none; more share it.
	first int32
	more  []int32
	// foreign has it in its status and does not hold it, or not any more.
	foreign party
}

// keep settles who holds what before anything is given: what stands in a status
// and fits stays, with the elder where two cannot hold the same. A FloatingIP
// comes before the Services, which hold its address only by its leave.
func (a *assigner) keep(services, floating []*subject) {
	for _, s := range floating {
		for _, addr := range s.Addresses {
			if f := s.family(addr); f >= 0 && !s.held[f].IsValid() && a.owners[addr].floating == 0 {
				s.held[f] = addr
				a.hold(s, addr)
			}
		}
	}
	for _, s := range services {
		if _, _, never := hopeless(s.Service); never {
			continue
		}
		for _, addr := range s.Addresses {
			if f := s.family(addr); f >= 0 && !s.held[f].IsValid() && a.stays(s, addr) {
				s.held[f] = addr
				a.hold(s, addr)
			}
		}
	}
	a.dissolve(floating)
	a.block(services)
	a.block(floating)
	for _, l := range a.state.Leaving {
		for _, addr := range l.Addresses {
			a.bar(addr, party{Key: l.Key})
		}
	}
	for addr, key := range a.state.Reserved {
		a.bar(addr, party{Key: key})
	}
}

// stays reports whether a Service may go on holding what its status says. What a
// pool allows does not matter here: an edit of it takes nothing away.
func (a *assigner) stays(s *subject, addr netip.Addr) bool {
	t := a.owners[addr]
	if t.floating > 0 && !a.claims(s, t.floating) {
		return false
	}
	return a.eachTenant(t, func(o *subject) *lack { return agree(s, o) }) == nil
}

// dissolve takes the addresses of FloatingIPs that are being deleted and not used.
func (a *assigner) dissolve(floating []*subject) {
	for _, s := range floating {
		s.dissolved = a.state.FloatingIPs[s.floating-1].Deleting && a.boundTo(s) == nil
		if !s.dissolved {
			continue
		}
		for f, addr := range s.held {
			a.vacate(s, addr)
			s.held[f] = netip.Addr{}
		}
	}
}

// block bars every address from others that stands in a status without being held.
func (a *assigner) block(subjects []*subject) {
	for _, s := range subjects {
		for _, addr := range s.Addresses {
			if !slices.Contains(s.held, addr) {
				a.bar(addr, s.party())
			}
		}
	}
}

func (a *assigner) bar(addr netip.Addr, p party) {
	if t := a.owners[addr]; t.foreign == (party{}) {
		t.foreign = p
		a.owners[addr] = t
	}
}

// hold makes the subject a holder of the address.
func (a *assigner) hold(s *subject, addr netip.Addr) {
	t := a.owners[addr]
	a.count(s, addr, t, 1)
	switch {
	case s.floating > 0:
		t.floating = s.floating
	case t.first == 0:
		t.first = s.number
	default:
		// By age, so that a message does not depend on who came first.
		all := append([]int32{t.first, s.number}, t.more...)
		slices.SortFunc(all, func(x, y int32) int { return byAge(&a.services[x-1], &a.services[y-1]) })
		t.first, t.more = all[0], all[1:]
	}
	if t.foreign == s.party() {
		t.foreign = party{}
	}
	a.owners[addr] = t
	if ring := a.shared[s.key]; ring != nil {
		ring.join(s, addr)
	}
}

// vacate takes the address from the subject, and bars it where the status still has it.
func (a *assigner) vacate(s *subject, addr netip.Addr) {
	if !addr.IsValid() {
		return
	}
	t := a.owners[addr]
	switch {
	case s.floating > 0:
		t.floating = 0
	case t.first == s.number:
		t.first = 0
		if len(t.more) > 0 {
			t.first, t.more = t.more[0], slices.Clone(t.more[1:])
		}
	default:
		t.more = slices.DeleteFunc(slices.Clone(t.more), func(n int32) bool { return n == s.number })
	}
	a.count(s, addr, t, -1)
	a.owners[addr] = t
	if slices.Contains(s.Addresses, addr) {
		a.bar(addr, s.party())
	} else if t.holders() == 0 && t.floating == 0 && t.foreign == (party{}) {
		delete(a.owners, addr)
	}
	if ring := a.shared[s.key]; ring != nil {
		others := a.eachTenant(t, func(o *subject) *lack {
			if o.key == s.key {
				return &lack{}
			}
			return nil
		})
		ring.leave(s, addr, others == nil)
	}
}

// eachTenant returns the first objection to a Service that holds the address.
func (a *assigner) eachTenant(t tenancy, objection func(*subject) *lack) *lack {
	if t.first == 0 {
		return nil
	}
	if l := objection(&a.services[t.first-1]); l != nil {
		return l
	}
	for _, n := range t.more {
		if l := objection(&a.services[n-1]); l != nil {
			return l
		}
	}
	return nil
}

func (t tenancy) holders() int {
	if t.first == 0 {
		return 0
	}
	return 1 + len(t.more)
}

// quotaKey is what a quota counts by.
type quotaKey struct {
	pool, namespace string
	family          lb.Family
}

// count adds to the namespace's use of the pool, where nobody else of it has the address.
func (a *assigner) count(s *subject, addr netip.Addr, t tenancy, n int) {
	pool := a.index.find(addr)
	if pool == nil || len(pool.Quota) == 0 || a.counted(s, t) {
		return
	}
	a.quota[quotaKey{pool.Name, s.Key.Namespace, lb.FamilyOf(addr)}] += n
}

// counted reports whether the address counts for the subject's namespace already.
func (a *assigner) counted(s *subject, t tenancy) bool {
	if t.floating > 0 && a.floating[t.floating-1].Key.Namespace == s.Key.Namespace {
		return true
	}
	return a.eachTenant(t, func(o *subject) *lack {
		if o.Key.Namespace == s.Key.Namespace {
			return &lack{}
		}
		return nil
	}) != nil
}
