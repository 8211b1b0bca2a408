package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// checkService checks a write that landed against the objects that the API server had then: whatever the caches
// showed, it gives no address that another object has, and takes none unasked.
func (h *history) checkService(r *run, before world, seen, after serviceObject) {
	if h.alien {
		return
	}
	for _, addr := range after.Addresses {
		if slices.Contains(seen.Addresses, addr) {
			continue
		}
		for i := range before.Services {
			o := &before.Services[i]
			if o.Key != seen.Key && o.has(addr) && !r.shares(&seen.Service, o.Key) {
				h.fail(fmt.Errorf("%s was written to %s, though %s has it", addr, seen.Key, o.Key))
			}
		}
		for i := range before.FloatingIPs {
			f := &before.FloatingIPs[i]
			if slices.Contains(f.Addresses, addr) && !r.lends(f.Key, &seen.Service) {
				h.fail(fmt.Errorf("%s was written to %s, though FloatingIP %s has it", addr, seen.Key, f.Key))
			}
		}
	}
	for _, addr := range seen.Addresses {
		if !slices.Contains(after.Addresses, addr) && modest(&seen.Service, addr) && !before.others(&seen, addr) {
			h.fail(fmt.Errorf("%s lost %s unasked, which nobody else has", seen.Key, addr))
		}
	}
}

// checkFloatingIP checks the write of a FloatingIP's status.
func (h *history) checkFloatingIP(r *run, before world, seen, after floatingObject) {
	if h.alien {
		return
	}
	for _, addr := range after.Addresses {
		if slices.Contains(seen.Addresses, addr) {
			continue
		}
		for i := range before.FloatingIPs {
			if f := &before.FloatingIPs[i]; f.Key != seen.Key && slices.Contains(f.Addresses, addr) {
				h.fail(fmt.Errorf("%s was written to FloatingIP %s, though FloatingIP %s has it", addr, seen.Key, f.Key))
			}
		}
		for i := range before.Services {
			o := &before.Services[i]
			if s := r.service(o.Key); o.has(addr) && (s == nil || !r.lends(seen.Key, s)) {
				h.fail(fmt.Errorf("%s was written to FloatingIP %s, though %s has it", addr, seen.Key, o.Key))
			}
		}
	}
}

// has reports whether clients reach the Service at the address, or did until its type was changed. A record without
// terms is of an address that it only waits for.
func (o *serviceObject) has(addr netip.Addr) bool {
	if o.served && !o.deleting {
		return slices.Contains(o.Addresses, addr)
	}
	shown, _ := o.shown()
	return slices.Contains(o.leaves(shown), addr)
}

// service returns the Service as the run saw it; nil for none.
func (r *run) service(key lb.Key) *lb.Service {
	if one := find(r.state.Services, func(o *lb.Service) bool { return o.Key == key }); one != nil {
		return *one
	}
	return nil
}

// shares reports whether the run saw a Service with which this one may share.
func (r *run) shares(svc *lb.Service, with lb.Key) bool {
	o := r.service(with)
	return o != nil && disagree(svc, o) == ""
}

// lends reports whether the run saw that the Service claims the FloatingIP.
func (r *run) lends(key lb.Key, svc *lb.Service) bool {
	for i := range r.state.FloatingIPs {
		if f := &r.state.FloatingIPs[i]; f.Key == key {
			return claimedBy(f, svc, r.result.FloatingIPs[i].Addresses...)
		}
	}
	return false
}

// modest reports whether the Service has one address of this family and asks for no other.
func modest(s *lb.Service, addr netip.Addr) bool {
	n := 0
	for _, a := range s.Addresses {
		if a.BitLen() == addr.BitLen() {
			n++
		}
	}
	policy := s.FamilyPolicy != lb.RequireDualStack || len(s.Families) == 2
	return n == 1 && policy && slices.Contains(s.Families, lb.FamilyOf(addr)) && !s.Renew && s.RequestedPool == "" &&
		len(s.RequestedAddresses) == 0 && s.FloatingIP == ""
}

// others reports whether another object has the address or asks for it.
func (w *world) others(svc *serviceObject, addr netip.Addr) bool {
	return slices.ContainsFunc(w.Services, func(o serviceObject) bool { return o.Key != svc.Key && o.has(addr) }) ||
		slices.ContainsFunc(w.FloatingIPs, func(f floatingObject) bool {
			return slices.Contains(f.Addresses, addr) || slices.Contains(f.Wanted, addr) || slices.Contains(lost(f.FloatingIP), addr) ||
				f.ServiceName == svc.Key.Name && f.Key.Namespace == svc.Key.Namespace
		})
}

// leaves reports whether a Service that gives up the address may share it with this one as long as its status, or its
// record, shows it.
func (w *witness) leaves(addr netip.Addr, svc *lb.Service) bool {
	return slices.ContainsFunc(slices.Concat(w.stood[addr], w.replaced[addr]), func(k lb.Key) bool {
		return k != svc.Key && !slices.Contains(w.holds[addr], k) && disagree(w.services[k], svc) == ""
	})
}

// frozen returns the address of the family that the Service held or asks back, if its status shows none and the address must
// be waited for: the pool that it came from cannot be read, or would give it when reuseDelay is over.
func (w *witness) frozen(svc *lb.Service, family lb.Family) netip.Addr {
	if svc.Renew || slices.ContainsFunc(svc.Addresses, func(a netip.Addr) bool { return lb.FamilyOf(a) == family }) {
		return netip.Addr{}
	}
	for _, had := range lostOf(svc) {
		if lb.FamilyOf(had.Address) != family {
			continue
		}
		p := w.poolOf(had.Address)
		if p != nil && w.allows(p, svc, had.Address, true) && w.quarantined(p, had.Address, svc.Key) {
			return had.Address
		}
		return netip.Addr{}
	}
	return netip.Addr{}
}

// lostOf returns what the Service held by its record, or asks back by its annotation, and does not show.
func lostOf(svc *lb.Service) lb.Origins {
	return slices.DeleteFunc(slices.Concat(svc.Record, svc.Recall), func(o lb.Origin) bool {
		return o.Terms == lb.TermsReleased || slices.Contains(svc.Addresses, o.Address)
	})
}
