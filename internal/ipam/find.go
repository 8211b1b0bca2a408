package ipam

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// find returns the addresses to add to what the subject holds, indexed by
// family, and why anything is missing. A request that cannot be met yields
// nothing at all: find never falls back to another address.
func (a *assigner) find(s *subject) (got perFamily, r *refusal) {
	if r := cmp.Or(s.unservable(), s.unreadable(), a.foreign(s)); r != nil {
		return got, r
	}
	wants, r := a.wants(s)
	if r != nil {
		return got, r
	}
	for f, addr := range wants {
		if !addr.IsValid() || s.held[f] == addr {
			continue
		}
		if r := a.grantable(s, addr); r != nil {
			return perFamily{}, r
		}
		got[f] = addr
	}
	if r := a.recall(s, &got); r != nil {
		return perFamily{}, r
	}
	if missing := s.missing(got); len(missing) > 0 {
		chosen, r := a.choose(s, missing, a.companion(s.held, got))
		if r != nil && s.FamilyPolicy != lb.PreferDualStack {
			return perFamily{}, r
		}
		for f, addr := range chosen {
			if addr.IsValid() {
				got[f] = addr
			}
		}
		if r != nil {
			return got, r
		}
	}
	r = a.move(s, wants, &got)
	return got, r
}

// foreign returns a refusal while the Service's status has an address that another load balancer wrote: what we write
// there, it would overwrite. holdfast.dev/renew asks to replace the address. If that was overwritten too, the terms in
// the record of it are what is left.
func (a *assigner) foreign(s *subject) *refusal {
	for _, addr := range s.Addresses {
		if !a.isForeign(s, addr) {
			continue
		}
		if !s.Renew || len(s.overwritten()) > 0 {
			return refuse(
				lb.ForeignAddress,
				"its status has %s, which no pool ever had: another load balancer wrote it",
				addr,
			)
		}
	}
	return nil
}

// isForeign reports whether another load balancer wrote the address: no pool has it or had it.
func (a *assigner) isForeign(s *subject, addr netip.Addr) bool {
	return s.fip == nil && s.Record.Of(addr).Pool == "" && a.index.Find(addr) == nil && a.holders[addr].floating == nil
}

func (s *subject) missing(got perFamily) []int {
	missing := make([]int, 0, len(got))
	for f := range s.Families {
		if !s.held[f].IsValid() && !got[f].IsValid() {
			missing = append(missing, f)
		}
	}
	return missing
}

// companion returns the pool of the subject's other address, if any.
func (a *assigner) companion(held, got perFamily) *supply {
	for _, addr := range slices.Concat(got[:], held[:]) {
		if s := a.index.Find(addr); s != nil {
			return s
		}
	}
	return nil
}

// recall gives a Service back the addresses it had before its status was lost, as in a restore, or before it gave them
// up in a clash. If another Service has the address now, or had it last and reuseDelay keeps it, this one waits:
// falling back would change its address for good. Addresses that no pool would assign to it are forgotten.
func (a *assigner) recall(s *subject, got *perFamily) *refusal {
	if s.Renew {
		return nil
	}
	for had := range s.lost {
		f, pool := s.family(had.Address), a.index.Find(had.Address)
		if s.held[f].IsValid() || got[f].IsValid() || !a.returnable(s, had) {
			continue
		}
		r := a.admits(s, had.Address, pool)
		if r == nil {
			got[f] = had.Address
			continue
		}
		switch r.reason {
		case lb.AddressInUse, lb.PortClash, lb.NotShareable, lb.SharingLimit, lb.Quarantined:
			return refuse(
				r.reason,
				"had %s before, %s: to take another, remove the annotation holdfast.dev/assigned",
				had.Address,
				r.message,
			)
		}
	}
	return nil
}

// returnable reports whether the pool of an address that the subject asks back may give it to the subject.
func (a *assigner) returnable(s *subject, had lb.Origin) bool {
	pool := a.index.Find(had.Address)
	return pool != nil &&
		!pool.avoids(had.Address) &&
		a.refuses(pool, s, true) == "" &&
		(s.RequestedPool == "" ||
			pool.Answers(s.RequestedPool))
}

// remembers reports whether the subject asks an address back that its pool may give to it.
func (a *assigner) remembers(s *subject) bool {
	for had := range s.lost {
		if a.returnable(s, had) {
			return true
		}
	}
	return false
}

// move replaces an address that the subject holds if it now requests another
// pool or renewal. It keeps the old address until another is available.
func (a *assigner) move(s *subject, wants perFamily, got *perFamily) *refusal {
	if s.joins || s.RequestedPool == "" && !s.Renew {
		return nil
	}
	for f, addr := range s.held {
		if !addr.IsValid() || got[f].IsValid() || wants[f].IsValid() || !a.outdated(s, addr) {
			continue
		}
		chosen, r := a.choose(s, []int{f}, nil)
		if r != nil {
			r.kept = true
			return r
		}
		got[f] = chosen[f]
	}
	return nil
}

// outdated reports whether the subject asks to leave the address. An edit of
// the pool does not count: the pool that the address was assigned from is as good while it lives.
func (a *assigner) outdated(s *subject, addr netip.Addr) bool {
	pool := a.index.Find(addr)
	if a.holders[addr].floating != nil && s.fip == nil {
		return false
	}
	if s.Renew {
		return pool == nil || pool.avoids(addr) || a.refuses(pool, s, pool.Answers(s.RequestedPool)) != "" ||
			s.RequestedPool != "" && !pool.Answers(s.RequestedPool)
	}
	origin := a.origin(s, addr)
	return origin != "" && origin != s.RequestedPool && (pool == nil || !pool.Answers(s.RequestedPool))
}
