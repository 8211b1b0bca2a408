package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// requested returns the addresses that the subject requests, directly or by claiming the FloatingIP that owns them.
func (a *assigner) requested(s *subject) (wants perFamily, r *refusal) {
	for _, addr := range s.RequestedAddresses {
		f := s.family(addr)
		if f < 0 {
			return wants, refuse(lb.InvalidRequest, "asks for %s, a family of which the Service has no cluster IP", addr)
		}
		wants[f] = addr
	}
	if s.fip != nil {
		return wants, nil
	}

	if s.FloatingIP != "" {
		r = a.requestClaimed(s, &wants)
		if r != nil {
			return wants, r
		}
	}

	for _, fip := range a.dedicated[s.Key] {
		for _, addr := range fip.held {
			f := s.family(addr)
			isOpen := f >= 0 && !wants[f].IsValid()
			if !isOpen {
				continue
			}

			mayUse := !fip.fip.Deleting || s.holds(addr)
			if mayUse {
				wants[f] = addr
			}
		}
	}

	return wants, nil
}

// requestClaimed adds the addresses of the FloatingIP that the Service names.
func (a *assigner) requestClaimed(s *subject, wants *perFamily) *refusal {
	key := lb.Key{Namespace: s.Key.Namespace, Name: s.FloatingIP}
	fip := a.floatingByKey[key]
	isOfFloating := func(f lb.Family) bool {
		return slices.Contains(fip.Families, f)
	}
	switch {
	case fip == nil:
		return refuse(lb.FloatingIPUnknown, "claims FloatingIP %q, which namespace %q does not have",
			s.FloatingIP, s.Key.Namespace)
	case fip.isForAnother(s):
		return refuse(lb.FloatingIPInUse,
			"claims FloatingIP %q, whose spec.serviceName gives it to Service %q, which exists",
			s.FloatingIP, fip.fip.ServiceName)
	case !slices.ContainsFunc(s.Families, isOfFloating):
		return refuse(lb.InvalidRequest, "claims FloatingIP %q, which is not of the Service's families", s.FloatingIP)
	}

	for i, family := range s.Families {
		f := slices.Index(fip.Families, family)
		if f < 0 {
			continue
		}

		addr := fip.held[f]
		switch {
		case fip.fip.Deleting && !s.holds(addr):
			return refuse(lb.FloatingIPDeleting, "claims FloatingIP %q, which is being deleted", s.FloatingIP)
		case !addr.IsValid():
			return refuse(lb.FloatingIPPending, "claims FloatingIP %q, which has no %s address yet",
				s.FloatingIP, family)
		case wants[i].IsValid() && wants[i] != addr:
			return refuse(lb.InvalidRequest, "asks for %s and claims FloatingIP %q, which owns %s",
				wants[i], s.FloatingIP, addr)
		}

		wants[i] = addr
	}

	return nil
}

// checkRequest returns a refusal if the subject cannot get an address that it requests. A quota is checked last, since
// the user can fix the other reasons.
func (a *assigner) checkRequest(s *subject, addr netip.Addr) *refusal {
	pool := a.index.Find(addr)
	fip := a.holders[addr].floating
	if fip != nil && s.fip == nil && s.claims(fip) {
		return a.checkClaim(s, fip, addr, pool)
	}

	r := a.checkHold(s, addr, pool)
	if r != nil {
		r.message = fmt.Sprintf("asks for %s, %s", addr, r.message)
		if r.reason != lb.QuotaExceeded {
			return r
		}
	}

	poolRefusal := a.checkRequestedPool(s, addr, pool)
	if poolRefusal != nil {
		return poolRefusal
	}

	return r
}

// checkRequestedPool returns a refusal if the pool of a requested address may not assign it to the subject.
func (a *assigner) checkRequestedPool(s *subject, addr netip.Addr, pool *supply) *refusal {
	if pool == nil {
		return refuse(lb.AddressNotInPool, "asks for %s, which is in none of the pools", addr)
	}
	if s.RequestedPool != "" && !pool.Answers(s.RequestedPool) {
		return refuse(lb.AddressNotInPool,
			"asks for %s and for pool %q, but the address is in pool %q: ask for one of the two",
			addr, s.RequestedPool, pool.Name)
	}

	why := a.poolRefusal(pool, s, true)
	if why != "" {
		return refuse(lb.PoolNotAllowed, "asks for %s, but pool %q %s", addr, pool.Name, why)
	}

	owner := pool.Withheld.Find(addr)
	if owner != "" {
		return refuse(lb.PoolNotAllowed, "asks for %s, which belongs to %s", addr, owner)
	}
	if pool.avoids(addr) {
		return refuse(lb.PoolNotAllowed, "asks for %s, but pool %q has avoidBuggyIPs on", addr, pool.Name)
	}

	return nil
}

// checkClaim returns a refusal if a Service cannot use the address of a FloatingIP that it claims. It does not check
// whether the pool serves the namespace, because that was checked when the FloatingIP got the address.
func (a *assigner) checkClaim(s, fip *subject, addr netip.Addr, pool *supply) *refusal {
	if fip.fip.Deleting {
		return refuse(lb.FloatingIPDeleting, "asks for %s of FloatingIP %q, which is being deleted", addr, fip.Key.Name)
	}

	if pool != nil {
		why := pool.kindMismatch(s)
		if why != "" {
			return refuse(lb.PoolNotAllowed, "claims FloatingIP %q with %s, but pool %q %s",
				fip.Key.Name, addr, pool.Name, why)
		}
	}

	r := a.checkHold(s, addr, pool)
	if r == nil {
		return nil
	}

	reason := r.reason
	if reason == lb.AddressInUse {
		reason = lb.FloatingIPInUse
	}

	return refuse(reason, "claims FloatingIP %q with %s, %s", fip.Key.Name, addr, r.message)
}
