package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// want is an address that a subject requests, directly or by claiming the FloatingIP that owns it.
type want struct {
	addr     netip.Addr
	floating int32
}

// wants returns what the subject requests, by the index of the family.
func (a *assigner) wants(s *subject) (wants [2]want, r *refusal) {
	for _, addr := range s.RequestedAddresses {
		f := s.family(addr)
		if f < 0 {
			return wants, refuse(lb.InvalidRequest, "asks for %s, a family of which the Service has no cluster IP", addr)
		}
		wants[f].addr = addr
	}
	if s.floating > 0 {
		return wants, nil
	}
	if s.FloatingIP != "" {
		if r := a.claim(s, &wants); r != nil {
			return wants, r
		}
	}
	for _, n := range a.claimable.forService[s.Key] {
		for f, addr := range a.ownedFor(s, n) {
			deleting := a.state.FloatingIPs[n-1].Deleting && !s.holds(addr)
			if addr.IsValid() && !wants[f].addr.IsValid() && !deleting {
				wants[f] = want{addr, n}
			}
		}
	}
	return wants, nil
}

// ownedFor returns what the FloatingIP owns, by the index of the Service's families.
func (a *assigner) ownedFor(s *subject, n int32) (out perFamily) {
	for _, addr := range a.floating[n-1].held {
		if f := s.family(addr); f >= 0 {
			out[f] = addr
		}
	}
	return out
}

// claim adds the addresses of the FloatingIP that the Service names.
func (a *assigner) claim(s *subject, wants *[2]want) *refusal {
	n := a.claimable.named[lb.Key{Namespace: s.Key.Namespace, Name: s.FloatingIP}]
	if n == 0 {
		return refuse(lb.FloatingIPUnknown, "claims FloatingIP %q, which namespace %q does not have", s.FloatingIP, s.Key.Namespace)
	}
	f := &a.state.FloatingIPs[n-1]
	if a.dedicated(s, n) {
		return refuse(lb.FloatingIPInUse, "claims FloatingIP %q, whose spec.serviceName gives it to Service %q, which exists", s.FloatingIP, f.ServiceName)
	}
	any := false
	owned := a.ownedFor(s, n)
	for i, family := range s.Families {
		if !slices.Contains(f.Families, family) {
			continue
		}
		any = true
		addr := owned[i]
		switch {
		case f.Deleting && !s.holds(addr):
			return refuse(lb.FloatingIPDeleting, "claims FloatingIP %q, which is being deleted", s.FloatingIP)
		case !addr.IsValid():
			return refuse(lb.FloatingIPPending, "claims FloatingIP %q, which has no %s address yet: see its conditions", s.FloatingIP, family)
		case wants[i].addr.IsValid() && wants[i].addr != addr:
			return refuse(lb.InvalidRequest, "asks for %s and claims FloatingIP %q, which owns %s: do one of the two", wants[i].addr, s.FloatingIP, addr)
		}
		wants[i] = want{addr, n}
	}
	if !any {
		return refuse(lb.InvalidRequest, "claims FloatingIP %q, which is not of the Service's families", s.FloatingIP)
	}
	return nil
}

// grantable returns why the subject cannot get the address it requests, or nil.
func (a *assigner) grantable(s *subject, w want) *refusal {
	pool := a.index.find(w.addr)
	if t := a.holders[w.addr]; t.floating > 0 && s.floating == 0 && a.claims(s, t.floating) {
		w.floating = t.floating
	}
	if w.floating > 0 {
		return a.lendable(s, w, pool)
	}
	r := a.admits(s, w.addr, pool)
	if r != nil {
		r.message = fmt.Sprintf("asks for %s, %s", w.addr, r.message)
	}
	if r != nil && r.reason != lb.QuotaExceeded {
		return r
	}
	if pool == nil {
		return refuse(lb.AddressNotInPool, "asks for %s, which is in none of the pools: ask for another address or add it to a pool", w.addr)
	}
	if s.RequestedPool != "" && s.RequestedPool != pool.Name {
		return refuse(lb.AddressNotInPool, "asks for %s and for pool %q, but the address is in pool %q: ask for one of the two", w.addr, s.RequestedPool, pool.Name)
	}
	if why := a.refuses(pool, s, true); why != "" {
		return refuse(lb.PoolNotAllowed, "asks for %s, but pool %q %s", w.addr, pool.Name, why)
	}
	if node := pool.NodeAddresses[w.addr]; node != "" {
		return refuse(lb.PoolNotAllowed, "asks for %s, which Node %q lists as its own address", w.addr, node)
	}
	if pool.avoids(w.addr) {
		return refuse(lb.PoolNotAllowed, "asks for %s, but pool %q has avoidBuggyIPs on", w.addr, pool.Name)
	}
	return r
}

// lendable returns why a Service cannot use the address of a FloatingIP that it claims. Whether the pool
// serves the namespace was checked when the FloatingIP got the address.
func (a *assigner) lendable(s *subject, w want, pool *supply) *refusal {
	f := a.state.FloatingIPs[w.floating-1]
	if f.Deleting {
		return refuse(lb.FloatingIPDeleting, "asks for %s of FloatingIP %q, which is being deleted", w.addr, f.Key.Name)
	}
	if pool != nil {
		if why := pool.mismatch(s); why != "" {
			return refuse(lb.PoolNotAllowed, "claims FloatingIP %q with %s, but pool %q %s", f.Key.Name, w.addr, pool.Name, why)
		}
	}
	r := a.admits(s, w.addr, pool)
	if r == nil {
		return nil
	}
	reason := r.reason
	if reason == lb.AddressInUse {
		reason = lb.FloatingIPInUse
	}
	return refuse(reason, "claims FloatingIP %q with %s, %s", f.Key.Name, w.addr, r.message)
}
