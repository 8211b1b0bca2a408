package ipam

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// holders are the objects that hold or claim an address.
type holders struct {
	// floating is the FloatingIP that owns it, or nil.
	floating *subject
	// services share it, by age.
	services []*subject
	// ports has the Service that holds each port; nil unless one may share the address.
	ports map[lb.Port]*subject
	// claimant has it in its status but does not hold it, or no longer; mostly there is none.
	claimant *party
}

// keep decides who keeps what before anything is assigned. An address in a status
// stays if it fits. If two Services cannot both hold it, the one with
// the recorded terms keeps it, else the older. FloatingIPs come before Services, which hold a
// FloatingIP's address only if they claim it.
func (a *assigner) keep(services, floating []*subject) {
	for _, s := range floating {
		for _, addr := range s.Addresses {
			if f := s.family(addr); f >= 0 && !s.held[f].IsValid() && a.holders[addr].floating == nil {
				s.held[f] = addr
				a.hold(s, addr)
			}
		}
	}
	for _, loyal := range []bool{true, false} {
		for _, s := range services {
			a.keepAddresses(s, loyal)
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
	for _, c := range a.state.Claims {
		by := party{c.Key, c.FloatingIP}
		a.unanswered[by] = c.Addresses
		for _, addr := range c.Addresses {
			a.bar(addr, by)
		}
	}
}

// keepAddresses lets a Service keep the addresses of its status that fit, of those to which it is
// loyal, or of the others. An edit that makes it clash with the other holders costs it the address,
// but does not move it to another one: that would change its address for good.
func (a *assigner) keepAddresses(s *subject, loyal bool) {
	if s.unservable() != nil {
		return
	}
	for _, addr := range s.Addresses {
		f := s.family(addr)
		if f < 0 || s.held[f].IsValid() || s.loyal(addr) != loyal {
			continue
		}
		switch r := a.stays(s, addr); {
		case r == nil:
			s.held[f] = addr
			a.hold(s, addr)
		case s.Record.Of(addr).Terms != "" && (r.reason == lb.PortClash || r.reason == lb.NotShareable):
			s.clashing = append(s.clashing, addr)
		}
	}
}

// stays returns why a Service cannot keep an address of its status, or nil. The pool's rules do not matter here: an
// edit of a pool takes nothing away. Another load balancer may show its address on many Services.
func (a *assigner) stays(s *subject, addr netip.Addr) *refusal {
	t := a.holders[addr]
	if t.floating != nil && !s.claims(t.floating) {
		return refuse(lb.AddressInUse, "which %s owns", s.named(t.floating.party()))
	}
	foreign := func(o *subject) bool { return a.isForeign(s, addr) && a.isForeign(o, addr) }
	for _, o := range t.services {
		if r := agree(s, o); r != nil && !foreign(o) {
			return r
		}
	}
	return s.clash(t, foreign)
}

// dissolve takes the addresses from FloatingIPs that are being deleted and are unused.
func (a *assigner) dissolve(floating []*subject) {
	for _, s := range floating {
		s.dissolved = s.fip.Deleting && a.boundTo(s) == nil
		if !s.dissolved {
			continue
		}
		for f, addr := range s.held {
			a.vacate(s, addr)
			s.held[f] = netip.Addr{}
		}
	}
}

// block bars others from every address that is in a subject's status, or was until another writer took it out, but not
// held by it.
func (a *assigner) block(subjects []*subject) {
	for _, s := range subjects {
		for addr := range s.had {
			if !s.holds(addr) {
				a.bar(addr, s.party())
			}
		}
	}
}

func (a *assigner) bar(addr netip.Addr, p party) {
	if t := a.holders[addr]; t.claimant == nil {
		t.claimant = &p
		a.put(addr, t)
		a.barred = append(a.barred, addr)
	}
}

// put sets who has an address, and counts it for its pool.
func (a *assigner) put(addr netip.Addr, t holders) {
	before, known := a.holders[addr]
	stays := t.held() || t.claimant != nil
	if stays {
		a.holders[addr] = t
	} else {
		delete(a.holders, addr)
		a.freed = append(a.freed, addr)
	}
	if p := a.index.Find(addr); p != nil {
		counts := p.counts.of(lb.FamilyOf(addr))
		counts.Assigned += one(t.held()) - one(before.held())
		if !p.avoids(addr) {
			counts.Available -= one(stays) - one(known)
		}
	}
}

func one(counts bool) int64 {
	if counts {
		return 1
	}
	return 0
}

func (a *assigner) hold(s *subject, addr netip.Addr) {
	t := a.holders[addr]
	a.count(s, addr, t, 1)
	if s.fip != nil {
		t.floating = s
	} else {
		// By age, so that messages do not depend on the order of calls.
		i, _ := slices.BinarySearchFunc(t.services, s, byAge)
		t.services = slices.Insert(slices.Clip(t.services), i, s)
	}
	if t.claimedBy(s) {
		t.claimant = nil
	}
	if s.shared != nil {
		if t.ports == nil {
			t.ports = make(map[lb.Port]*subject, len(s.Ports))
		}
		for _, p := range s.Ports {
			if t.ports[p.Frontend()] == nil {
				t.ports[p.Frontend()] = s
			}
		}
		if i, found := slices.BinarySearchFunc(*s.shared, addr, netip.Addr.Compare); !found {
			*s.shared = slices.Insert(*s.shared, i, addr)
		}
	}
	a.put(addr, t)
}

// vacate takes the address from the subject, and bars others from it while the status still has it.
func (a *assigner) vacate(s *subject, addr netip.Addr) {
	if slices.Contains(s.Addresses, addr) {
		a.bar(addr, s.party())
	}
	a.leave(s, addr)
}

// leave takes the address from the subject, if it is any.
func (a *assigner) leave(s *subject, addr netip.Addr) {
	if !addr.IsValid() {
		return
	}
	t := a.holders[addr]
	if s.fip != nil {
		t.floating = nil
	} else {
		t.services = slices.DeleteFunc(slices.Clone(t.services), func(o *subject) bool { return o == s })
	}
	a.left = true
	a.count(s, addr, t, -1)
	for _, p := range s.Ports {
		if t.ports[p.Frontend()] == s {
			delete(t.ports, p.Frontend())
		}
	}
	a.put(addr, t)
	if s.shared != nil && !slices.ContainsFunc(t.services, func(o *subject) bool { return o.key == s.key }) {
		*s.shared = slices.DeleteFunc(*s.shared, func(b netip.Addr) bool { return b == addr })
	}
}

func (t holders) held() bool { return t.floating != nil || len(t.services) > 0 }

func (t holders) claimedBy(s *subject) bool { return t.claimant != nil && *t.claimant == s.party() }

type quotaKey struct {
	pool, namespace string
	family          lb.Family
}

// count adds n to the namespace's use of the pool, unless the namespace has the address already.
func (a *assigner) count(s *subject, addr netip.Addr, t holders, n int) {
	pool := a.index.Find(addr)
	if pool == nil || len(pool.Quota) == 0 || a.counted(s, t) {
		return
	}
	a.quota[quotaKey{pool.Name, s.Key.Namespace, lb.FamilyOf(addr)}] += n
}

// counted reports whether the address already counts for the subject's namespace.
func (a *assigner) counted(s *subject, t holders) bool {
	if t.floating != nil && t.floating.Key.Namespace == s.Key.Namespace {
		return true
	}
	return slices.ContainsFunc(t.services, func(o *subject) bool { return o.Key.Namespace == s.Key.Namespace })
}
