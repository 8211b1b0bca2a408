package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// wants returns what the subject requests, directly or by claiming the FloatingIP that owns it, by the index of the
// family.
func (a *assigner) wants(s *subject) (wants perFamily, r *refusal) {
	for _, addr := range s.RequestedAddresses {
		f := s.family(addr)
		if f < 0 {
			return wants, refuse(
				lb.InvalidRequest,
				"asks for %s, a family of which the Service has no cluster IP",
				addr,
			)
		}
		wants[f] = addr
	}
	if s.fip != nil {
		return wants, nil
	}
	if s.FloatingIP != "" {
		if r := a.claim(s, &wants); r != nil {
			return wants, r
		}
	}
	for _, fip := range a.dedicated[s.Key] {
		for _, addr := range fip.held {
			if f := s.family(addr); f >= 0 && !wants[f].IsValid() && (!fip.fip.Deleting || s.holds(addr)) {
				wants[f] = addr
			}
		}
	}
	return wants, nil
}

func (a *assigner) claim(s *subject, wants *perFamily) *refusal {
	fip := a.named[lb.Key{Namespace: s.Key.Namespace, Name: s.FloatingIP}]
	switch {
	case fip == nil:
		return refuse(
			lb.FloatingIPUnknown,
			"claims FloatingIP %q, which namespace %q does not have",
			s.FloatingIP,
			s.Key.Namespace,
		)
	case fip.isForAnother(s):
		return refuse(
			lb.FloatingIPInUse,
			"claims FloatingIP %q, whose spec.serviceName gives it to Service %q, which exists",
			s.FloatingIP,
			fip.fip.ServiceName,
		)
	case !slices.ContainsFunc(s.Families, func(f lb.Family) bool { return slices.Contains(fip.Families, f) }):
		return refuse(lb.InvalidRequest, "claims FloatingIP %q, which is not of the Service's families", s.FloatingIP)
	}
	for i, family := range s.Families {
		f := slices.Index(fip.Families, family)
		if f < 0 {
			continue
		}
		switch addr := fip.held[f]; {
		case fip.fip.Deleting && !s.holds(addr):
			return refuse(lb.FloatingIPDeleting, "claims FloatingIP %q, which is being deleted", s.FloatingIP)
		case !addr.IsValid():
			return refuse(
				lb.FloatingIPPending,
				"claims FloatingIP %q, which has no %s address yet",
				s.FloatingIP,
				family,
			)
		case wants[i].IsValid() && wants[i] != addr:
			return refuse(
				lb.InvalidRequest,
				"asks for %s and claims FloatingIP %q, which owns %s",
				wants[i],
				s.FloatingIP,
				addr,
			)
		default:
			wants[i] = addr
		}
	}
	return nil
}

// grantable returns why the subject cannot get the address it requests, or nil.
func (a *assigner) grantable(s *subject, addr netip.Addr) *refusal {
	pool := a.index.Find(addr)
	if fip := a.holders[addr].floating; fip != nil && s.fip == nil && s.claims(fip) {
		return a.lendable(s, fip, addr, pool)
	}
	r := a.admits(s, addr, pool)
	if r != nil {
		r.message = fmt.Sprintf("asks for %s, %s", addr, r.message)
	}
	if r != nil && r.reason != lb.QuotaExceeded {
		return r
	}
	if pool == nil {
		return refuse(lb.AddressNotInPool, "asks for %s, which is in none of the pools", addr)
	}
	if s.RequestedPool != "" && !pool.Answers(s.RequestedPool) {
		return refuse(
			lb.AddressNotInPool,
			"asks for %s and for pool %q, but the address is in pool %q: ask for one of the two",
			addr,
			s.RequestedPool,
			pool.Name,
		)
	}
	if why := a.refuses(pool, s, true); why != "" {
		return refuse(lb.PoolNotAllowed, "asks for %s, but pool %q %s", addr, pool.Name, why)
	}
	if owner := pool.Withheld.Find(addr); owner != "" {
		return refuse(lb.PoolNotAllowed, "asks for %s, which belongs to %s", addr, owner)
	}
	if pool.avoids(addr) {
		return refuse(lb.PoolNotAllowed, "asks for %s, but pool %q has avoidBuggyIPs on", addr, pool.Name)
	}
	return r
}

// lendable returns why a Service cannot use the address of a FloatingIP that it claims. Whether the pool
// serves the namespace was checked when the FloatingIP got the address.
func (a *assigner) lendable(s, fip *subject, addr netip.Addr, pool *supply) *refusal {
	if fip.fip.Deleting {
		return refuse(lb.FloatingIPDeleting, "asks for %s of FloatingIP %q, which is being deleted", addr, fip.Key.Name)
	}
	if pool != nil {
		if why := pool.mismatch(s); why != "" {
			return refuse(
				lb.PoolNotAllowed,
				"claims FloatingIP %q with %s, but pool %q %s",
				fip.Key.Name,
				addr,
				pool.Name,
				why,
			)
		}
	}
	r := a.admits(s, addr, pool)
	if r == nil {
		return nil
	}
	reason := r.reason
	if reason == lb.AddressInUse {
		reason = lb.FloatingIPInUse
	}
	return refuse(reason, "claims FloatingIP %q with %s, %s", fip.Key.Name, addr, r.message)
}
