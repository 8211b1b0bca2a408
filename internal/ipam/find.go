package ipam

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// find returns the addresses to add to those that the subject holds, and the reason why any is missing. A request that
// cannot be met yields no address at all: find never falls back to another address.
func (a *assigner) find(s *subject) (got perFamily, r *refusal) {
	r = cmp.Or(s.checkServable(), s.checkProblem(), a.checkForeign(s))
	if r != nil {
		return got, r
	}

	wants, r := a.requested(s)
	if r != nil {
		return got, r
	}

	for f, addr := range wants {
		if !addr.IsValid() || s.held[f] == addr {
			continue
		}

		r = a.checkRequest(s, addr)
		if r != nil {
			return perFamily{}, r
		}

		got[f] = addr
	}

	r = a.recallAddresses(s, &got)
	if r != nil {
		return perFamily{}, r
	}

	got, r = a.chooseMissing(s, got)
	if r != nil {
		return got, r
	}

	r = a.moveAddresses(s, wants, &got)
	return got, r
}

// chooseMissing adds addresses of the families that the subject has none of. A Service that prefers two families gets
// one if the other is not available.
func (a *assigner) chooseMissing(s *subject, got perFamily) (perFamily, *refusal) {
	if !s.isMissing(got) {
		return got, nil
	}

	preferred := a.otherPool(s.held, got)
	chosen, r := a.choose(s, s.missing(got), preferred)
	if r != nil && s.FamilyPolicy != lb.PreferDualStack {
		return perFamily{}, r
	}

	for f, addr := range chosen {
		if addr.IsValid() {
			got[f] = addr
		}
	}

	return got, r
}

// checkForeign returns a refusal while the Service's status has an address from another load balancer, which would
// overwrite what we write there. A user who sets holdfast.dev/renew asks to replace that address. If our addresses are
// overwritten again after that, the record has nothing but their terms.
func (a *assigner) checkForeign(s *subject) *refusal {
	for _, addr := range s.Addresses {
		if !a.isForeign(s, addr) {
			continue
		}

		mayReplace := s.Renew && len(s.overwritten()) == 0
		if !mayReplace {
			return refuse(lb.ForeignAddress,
				"its status has %s, which no pool ever had: another load balancer wrote it", addr)
		}
	}

	return nil
}

// isForeign reports whether another load balancer wrote the address: no pool has it or had it.
func (a *assigner) isForeign(s *subject, addr netip.Addr) bool {
	isRecorded := s.Record.Of(addr).Pool != ""
	if isRecorded || s.fip != nil || a.index.Find(addr) != nil {
		return false
	}
	return a.holders[addr].floating == nil
}

// isMissing reports whether the subject neither holds nor got an address of each family.
func (s *subject) isMissing(got perFamily) bool {
	for f := range s.Families {
		if !s.held[f].IsValid() && !got[f].IsValid() {
			return true
		}
	}

	return false
}

// missing returns the indexes of the families in which the subject neither holds nor got an address.
func (s *subject) missing(got perFamily) []int {
	missing := make([]int, 0, len(got))
	for f := range s.Families {
		if !s.held[f].IsValid() && !got[f].IsValid() {
			missing = append(missing, f)
		}
	}

	return missing
}

// otherPool returns the pool of an address that the subject has in another family; nil if there is none.
func (a *assigner) otherPool(held, got perFamily) *supply {
	for _, addr := range slices.Concat(got[:], held[:]) {
		s := a.index.Find(addr)
		if s != nil {
			return s
		}
	}

	return nil
}

// recallAddresses gives a Service back the addresses that it had before its status was lost, as in a restore, or before
// it gave them up in a clash. If another Service has the address now, or had it last and reuseDelay reserves it, the
// Service waits: another address would be permanent. It drops addresses that no pool would assign to the Service.
func (a *assigner) recallAddresses(s *subject, got *perFamily) *refusal {
	if s.Renew || !s.isMissing(*got) {
		return nil
	}

	for origin := range s.lostOrigins {
		addr := origin.Address
		f := s.family(addr)
		isMissing := !s.held[f].IsValid() && !got[f].IsValid()
		if !isMissing || !a.mayReturn(s, origin) {
			continue
		}

		r := a.checkHold(s, addr, a.index.Find(addr))
		if r == nil {
			got[f] = addr
			continue
		}

		switch r.reason {
		case lb.AddressInUse, lb.PortClash, lb.NotShareable, lb.SharingLimit, lb.Quarantined:
			return refuse(r.reason,
				"had %s before, %s: to take another, remove the annotation holdfast.dev/assigned", addr, r.message)
		}
	}

	return nil
}

// mayReturn reports whether the pool of an address that the subject recalls may assign it to the subject.
func (a *assigner) mayReturn(s *subject, origin lb.Origin) bool {
	pool := a.index.Find(origin.Address)
	if pool == nil || pool.avoids(origin.Address) {
		return false
	}

	mayServe := a.poolRefusal(pool, s, true) == ""
	isRequested := s.RequestedPool == "" || pool.Answers(s.RequestedPool)
	return mayServe && isRequested
}

// mayRecall reports whether the subject recalls an address that its pool may assign to it.
func (a *assigner) mayRecall(s *subject) bool {
	for origin := range s.lostOrigins {
		if a.mayReturn(s, origin) {
			return true
		}
	}

	return false
}

// moveAddresses replaces an address that the subject holds if the subject now requests another pool or renewal. The old
// address stays until another is available.
func (a *assigner) moveAddresses(s *subject, wants perFamily, got *perFamily) *refusal {
	mayMove := s.RequestedPool != "" || s.Renew
	if s.isJoining || !mayMove {
		return nil
	}

	for f, addr := range s.held {
		hasReplacement := got[f].IsValid() || wants[f].IsValid()
		if !addr.IsValid() || hasReplacement || !a.isOutdated(s, addr) {
			continue
		}

		chosen, r := a.choose(s, []int{f}, nil)
		if r != nil {
			r.isKept = true
			return r
		}

		got[f] = chosen[f]
	}

	return nil
}

// isOutdated reports whether the subject asks to leave the address. An edit of the pool does not count: the address
// stays as long as the pool that it was assigned from is the requested one.
func (a *assigner) isOutdated(s *subject, addr netip.Addr) bool {
	usesFloating := a.holders[addr].floating != nil && s.fip == nil
	if usesFloating {
		return false
	}

	pool := a.index.Find(addr)
	isInRequested := pool != nil && pool.Answers(s.RequestedPool)
	if s.Renew {
		isElsewhere := s.RequestedPool != "" && !isInRequested
		if pool == nil || isElsewhere {
			return true
		}
		return pool.avoids(addr) || a.poolRefusal(pool, s, isInRequested) != ""
	}

	origin := a.origin(s, addr, pool)
	return origin != "" && origin != s.RequestedPool && !isInRequested
}
