package ipam

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// addressHolders are the objects that hold or claim an address.
type addressHolders struct {
	// floating is the FloatingIP that owns the address, or nil.
	floating *subject
	// services are the Services that share the address, ordered by age.
	services []*subject
	// ports has the Service that holds each port; nil if no Service may share the address.
	ports map[lb.Port]*subject
	// claimant has the address in its status but does not hold it, or no longer. It is usually nil.
	claimant *objectID
}

// isHeld reports whether the address has a holder.
func (t addressHolders) isHeld() bool {
	return t.floating != nil || len(t.services) > 0
}

// isClaimedBy reports whether the subject is the claimant.
func (t addressHolders) isClaimedBy(s *subject) bool {
	return t.claimant != nil && *t.claimant == s.id()
}

// keepAll decides which objects keep which addresses, before anything is assigned. An address in a status stays if it
// fits. If two Services cannot both hold it, the one with the recorded terms keeps it, else the older one. FloatingIPs
// come before Services, which hold a FloatingIP's address only if they claim it.
func (a *assigner) keepAll(services, floating []*subject) {
	for _, s := range floating {
		for _, addr := range s.Addresses {
			f := s.family(addr)
			isWanted := f >= 0 && !s.held[f].IsValid()
			isFree := a.holders[addr].floating == nil
			if isWanted && isFree {
				s.held[f] = addr
				a.addHolder(s, addr)
			}
		}
	}

	var others []*subject
	for _, s := range services {
		if a.keepAddresses(s, true) {
			others = append(others, s)
		}
	}
	for _, s := range others {
		a.keepAddresses(s, false)
	}

	a.dissolveDeleted(floating)

	a.reserveFormer(services)
	a.reserveFormer(floating)
	a.reserveOthers()
}

// keepAddresses lets a Service keep the addresses of its status that fit: those with recorded terms, or the others. It
// reports whether there are others. If an edit of the Service makes it clash with other holders, it loses the address
// but gets no other one, because that would be permanent.
func (a *assigner) keepAddresses(s *subject, withRecordedTerms bool) (hasOthers bool) {
	if s.checkServable() != nil {
		return false
	}

	for _, addr := range s.Addresses {
		f := s.family(addr)
		isWanted := f >= 0 && !s.held[f].IsValid()
		if !isWanted {
			continue
		}
		if s.hasRecordedTerms(addr) != withRecordedTerms {
			hasOthers = true
			continue
		}

		r := a.checkKeep(s, addr)
		if r == nil {
			s.held[f] = addr
			a.addHolder(s, addr)
			continue
		}

		isRecorded := s.Record.Of(addr).Terms != ""
		isClash := r.reason == lb.PortClash || r.reason == lb.NotShareable
		if isRecorded && isClash {
			s.clashing = append(s.clashing, addr)
		}
	}

	return hasOthers
}

// checkKeep returns a refusal if a Service cannot keep an address of its status. The rules of the pool do not matter:
// an edit of a pool takes nothing away. Another load balancer may write one address to many Services.
func (a *assigner) checkKeep(s *subject, addr netip.Addr) *refusal {
	t := a.holders[addr]
	if t.floating != nil && !s.claims(t.floating) {
		return s.refuseFor(t.floating, lb.AddressInUse, "which %s owns")
	}

	areForeign := func(o *subject) bool {
		return a.isForeign(s, addr) && a.isForeign(o, addr)
	}
	for _, o := range t.services {
		r := checkCompatible(s, o)
		if r != nil && !areForeign(o) {
			return r
		}
	}

	return s.checkPorts(t, areForeign)
}

// dissolveDeleted takes the addresses from FloatingIPs that are being deleted and are not used.
func (a *assigner) dissolveDeleted(floating []*subject) {
	for _, s := range floating {
		s.isDissolved = s.fip.Deleting && a.boundTo(s) == nil
		if !s.isDissolved {
			continue
		}
		for f, addr := range s.held {
			a.moveOut(s, addr)
			s.held[f] = netip.Addr{}
		}
	}
}

// reserveFormer reserves every address that a subject does not hold but has in its status, or had there until another
// writer replaced it.
func (a *assigner) reserveFormer(subjects []*subject) {
	for _, s := range subjects {
		for addr := range s.former {
			if !s.holds(addr) {
				a.reserve(addr, s.id())
			}
		}
	}
}

// reserveOthers reserves the addresses of Services that are not ours, and of writes without an answer.
func (a *assigner) reserveOthers() {
	for _, l := range a.state.Leaving {
		for _, addr := range l.Addresses {
			a.reserve(addr, objectID{Key: l.Key})
		}
	}

	for addr, key := range a.state.Reserved {
		a.reserve(addr, objectID{Key: key})
	}

	for _, c := range a.state.Claims {
		id := objectID{Key: c.Key, isFloating: c.FloatingIP}
		a.claimed[id] = c.Addresses
		for _, addr := range c.Addresses {
			a.reserve(addr, id)
		}
	}
}

// reserve makes an object the claimant of an address, unless there is one: no other object gets it in this decision.
func (a *assigner) reserve(addr netip.Addr, id objectID) {
	t := a.holders[addr]
	if t.claimant != nil {
		return
	}

	t.claimant = &id
	a.setHolders(addr, t)
}

// setHolders sets the holders of an address, and updates the counts of its pool.
func (a *assigner) setHolders(addr netip.Addr, t addressHolders) {
	before, wasTaken := a.holders[addr]
	isTaken := t.isHeld() || t.claimant != nil
	if isTaken {
		a.holders[addr] = t
	} else {
		delete(a.holders, addr)
	}

	p := a.index.Find(addr)
	if p == nil {
		return
	}

	counts := p.counts.countsOf(lb.FamilyOf(addr))
	counts.Assigned += change(before.isHeld(), t.isHeld())
	if !p.avoids(addr) {
		counts.Available -= change(wasTaken, isTaken)
	}
}

// change returns the change of a count when one of its items begins to count (1) or ceases to (-1).
func change(before, after bool) int64 {
	switch {
	case after && !before:
		return 1
	case before && !after:
		return -1
	}

	return 0
}

// addHolder makes the subject a holder of the address.
func (a *assigner) addHolder(s *subject, addr netip.Addr) {
	t := a.holders[addr]
	a.countForQuota(s, addr, t, 1)

	if s.fip != nil {
		t.floating = s
	} else {
		// The order by age makes messages independent of the order of calls.
		i, _ := slices.BinarySearchFunc(t.services, s, compareAge)
		t.services = slices.Insert(slices.Clip(t.services), i, s)
	}

	if t.isClaimedBy(s) {
		t.claimant = nil
	}

	if s.shared != nil {
		t.addPorts(s)
		i, ok := slices.BinarySearchFunc(*s.shared, addr, netip.Addr.Compare)
		if !ok {
			*s.shared = slices.Insert(*s.shared, i, addr)
		}
	}

	a.setHolders(addr, t)
}

// addPorts adds the ports of a Service that no other holder has.
func (t *addressHolders) addPorts(s *subject) {
	if t.ports == nil {
		t.ports = make(map[lb.Port]*subject, len(s.Ports))
	}

	for _, p := range s.Ports {
		frontend := p.Frontend()
		if t.ports[frontend] == nil {
			t.ports[frontend] = s
		}
	}
}

// moveOut takes the address from the subject, and reserves it while the status still has it.
func (a *assigner) moveOut(s *subject, addr netip.Addr) {
	if slices.Contains(s.Addresses, addr) {
		a.reserve(addr, s.id())
	}
	a.removeHolder(s, addr)
}

// removeHolder takes the address from the subject. It does nothing for the zero Addr.
func (a *assigner) removeHolder(s *subject, addr netip.Addr) {
	if !addr.IsValid() {
		return
	}

	t := a.holders[addr]
	if s.fip != nil {
		t.floating = nil
	} else {
		t.services = slices.DeleteFunc(slices.Clone(t.services), func(o *subject) bool {
			return o == s
		})
	}

	a.hasLeft = true
	a.countForQuota(s, addr, t, -1)

	for _, p := range s.Ports {
		frontend := p.Frontend()
		if t.ports[frontend] == s {
			delete(t.ports, frontend)
		}
	}

	a.setHolders(addr, t)

	if s.shared == nil {
		return
	}

	hasSameKey := func(o *subject) bool { return o.shareKey == s.shareKey }
	isStillShared := slices.ContainsFunc(t.services, hasSameKey)
	if !isStillShared {
		isLeft := func(b netip.Addr) bool { return b == addr }
		*s.shared = slices.DeleteFunc(*s.shared, isLeft)
	}
}

// quotaKey identifies the quota of a namespace in a pool.
type quotaKey struct {
	pool      string
	namespace string
	family    lb.Family
}

// quotaKey identifies the quota of the subject's namespace in a pool.
func (s *subject) quotaKey(pool *supply, family lb.Family) quotaKey {
	return quotaKey{
		pool:      pool.Name,
		namespace: s.Key.Namespace,
		family:    family,
	}
}

// countForQuota adds n to the namespace's use of the pool, unless the namespace has the address by another object. t
// are the other holders.
func (a *assigner) countForQuota(s *subject, addr netip.Addr, t addressHolders, n int) {
	pool := a.index.Find(addr)
	hasQuota := pool != nil && len(pool.Quota) > 0
	if !hasQuota || a.isCounted(s, t) {
		return
	}

	key := s.quotaKey(pool, lb.FamilyOf(addr))
	a.quota[key] += n
}

// isCounted reports whether the address counts for the subject's namespace because of these holders.
func (a *assigner) isCounted(s *subject, t addressHolders) bool {
	isNeighbour := func(o *subject) bool {
		return o.Key.Namespace == s.Key.Namespace
	}
	if t.floating != nil && isNeighbour(t.floating) {
		return true
	}

	return slices.ContainsFunc(t.services, isNeighbour)
}
