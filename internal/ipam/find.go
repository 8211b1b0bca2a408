package ipam

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// find returns the addresses to give to a subject that holds some already, by
// the index of their family, and what it lacks besides. A request that cannot be
// met gives nothing at all: it never falls back to something else.
func (a *assigner) find(s *subject) ([]netip.Addr, *lack) {
	if s.Problem != nil {
		return nil, &lack{reason: s.Problem.Reason, message: s.Problem.Message}
	}
	wants, l := a.wants(s)
	if l != nil {
		return nil, l
	}
	got := make([]netip.Addr, len(s.Families))
	for f, want := range wants {
		if !want.addr.IsValid() || s.held[f] == want.addr {
			continue
		}
		if l := a.grantable(s, want); l != nil {
			return nil, l
		}
		got[f] = want.addr
	}
	if l := a.recall(s, got); l != nil {
		return nil, l
	}
	if missing := s.missing(got); len(missing) > 0 {
		chosen, l := a.choose(s, missing, a.companion(s.held, got))
		if l != nil && s.FamilyPolicy != lb.PreferDualStack {
			return nil, l
		}
		for f, addr := range chosen {
			if addr.IsValid() {
				got[f] = addr
			}
		}
		if l != nil {
			return got, l
		}
	}
	return got, a.move(s, wants, got)
}

func (s *subject) missing(got []netip.Addr) []int {
	var missing []int
	for f := range s.Families {
		if !s.held[f].IsValid() && !got[f].IsValid() {
			missing = append(missing, f)
		}
	}
	return missing
}

// companion returns the pool that the other address of a subject comes from, if any.
func (a *assigner) companion(held, got []netip.Addr) *supply {
	for _, addrs := range [][]netip.Addr{got, held} {
		for _, addr := range addrs {
			if s := a.index.find(addr); s != nil {
				return s
			}
		}
	}
	return nil
}

// recall gives back what the Service had before its status was lost, as in a
// restore. Where somebody else has it now the Service waits: falling back would
// change its address for good. What no pool would give it is forgotten.
func (a *assigner) recall(s *subject, got []netip.Addr) *lack {
	if s.Renew || len(s.AssignedFrom) == 0 {
		return nil
	}
	for f, family := range s.Families {
		if s.held[f].IsValid() || got[f].IsValid() {
			continue
		}
		addr, pool := a.lost(s, family)
		if pool == nil {
			continue
		}
		switch l := a.admits(s, addr, pool); {
		case l == nil:
			got[f] = addr
		case isConflict(l.reason):
			return lacks(l.reason, "had %s before, %s: to take another, remove the annotation holdfast.dev/assigned", addr, l.message)
		}
	}
	return nil
}

// lost returns the address of the family that the Service had before, and its pool, if that would give it.
func (a *assigner) lost(s *subject, family lb.Family) (addr netip.Addr, pool *supply) {
	for last := range s.AssignedFrom {
		p := a.index.find(last)
		if lb.FamilyOf(last) != family || slices.Contains(s.Addresses, last) || p == nil || addr.IsValid() && addr.Less(last) {
			continue
		}
		if p.avoids(last) || a.refusal(s, p, true) != "" || s.RequestedPool != "" && s.RequestedPool != p.Name {
			continue
		}
		addr, pool = last, p
	}
	return addr, pool
}

// isConflict tells an address that somebody else has from one that may not be given.
func isConflict(r lb.Reason) bool {
	return r == lb.AddressInUse || r == lb.PortClash || r == lb.NotShareable || r == lb.SharingLimit
}

// move exchanges an address that the subject holds where it asks for another
// pool now, or to be renewed. Until another can be had the old one stays.
func (a *assigner) move(s *subject, wants []want, got []netip.Addr) *lack {
	if s.joins || s.RequestedPool == "" && !s.Renew {
		return nil
	}
	for f, addr := range s.held {
		if !addr.IsValid() || got[f].IsValid() || wants[f].addr.IsValid() || !a.outdated(s, addr) {
			continue
		}
		chosen, l := a.choose(s, []int{f}, nil)
		if l != nil {
			l.kept = true
			return l
		}
		got[f] = chosen[f]
	}
	return nil
}

// outdated reports whether the subject asks to leave the address. That its pool
// was edited is no such wish: what it was assigned from counts as well.
func (a *assigner) outdated(s *subject, addr netip.Addr) bool {
	pool := a.index.find(addr)
	if t := a.owners[addr]; t.floating > 0 && s.floating == 0 {
		return false
	}
	if s.Renew {
		return pool == nil || pool.avoids(addr) || a.refusal(s, pool, s.RequestedPool == pool.Name) != "" ||
			s.RequestedPool != "" && s.RequestedPool != pool.Name
	}
	origin := s.AssignedFrom[addr]
	if origin == "" && pool != nil {
		origin = pool.Name
	}
	return origin != "" && origin != s.RequestedPool && (pool == nil || pool.Name != s.RequestedPool)
}
