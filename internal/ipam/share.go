package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// lack is why a Service cannot have what it wants.
type lack struct {
	reason  lb.Reason
	message string
	// kept: it has an address all the same, only not the one it wants now.
	kept bool
}

func lacks(reason lb.Reason, format string, args ...any) *lack {
	return &lack{reason: reason, message: fmt.Sprintf(format, args...)}
}

// admits says why the subject cannot hold the address beside those who have to
// do with it, or nil. Its message goes on from the address: "192.0.2.1, which …".
func (a *assigner) admits(s *subject, addr netip.Addr, pool *supply) *lack {
	t, taken := a.owners[addr]
	if taken {
		if l := a.beside(s, addr, pool, t); l != nil {
			return l
		}
	}
	if l := a.quarantined(s, addr, pool); l != nil && t.holders() == 0 && t.floating == 0 {
		return l
	}
	return a.overQuota(s, pool, lb.FamilyOf(addr), t)
}

func (a *assigner) beside(s *subject, addr netip.Addr, pool *supply, t tenancy) *lack {
	switch {
	case t.foreign != (party{}) && t.foreign != s.party():
		return lacks(lb.AddressInUse, "which %s holds", t.foreign)
	case s.floating > 0 && t.floating > 0 && t.floating != s.floating:
		return lacks(lb.AddressInUse, "which FloatingIP %s owns", a.floating[t.floating-1].Key)
	case s.floating > 0:
		return a.eachTenant(t, func(o *subject) *lack {
			if a.yields(o, s.floating) {
				return nil
			}
			return lacks(lb.AddressInUse, "which Service %s holds: set spec.serviceName to take it over with the Service", o.Key)
		})
	case t.floating > 0 && !a.claims(s, t.floating):
		return lacks(lb.AddressInUse, "which FloatingIP %s owns", a.floating[t.floating-1].Key)
	case slices.Contains(s.held, addr):
		return nil
	}
	if l := a.eachTenant(t, func(o *subject) *lack { return shareable(s, o, pool) }); l != nil {
		return l
	}
	return a.crowded(s, pool, t)
}

// agree says why two Services cannot hold one address, whatever its pool says.
func agree(s, o *subject) *lack {
	switch {
	case s.key == "" || s.key != o.key:
		return lacks(lb.AddressInUse, "which Service %s holds", o.Key)
	case s.Internal != o.Internal:
		return lacks(lb.NotShareable, "which Service %s holds: an internal Service and an external one never share", o.Key)
	case s.Local != o.Local:
		return lacks(lb.NotShareable, "which Service %s holds with another externalTrafficPolicy: Services that share have the same", o.Key)
	case s.Local && (s.Backend == "" || s.Backend != o.Backend):
		return lacks(lb.NotShareable, "which Service %s holds: under externalTrafficPolicy Local, Services that share have the same selector", o.Key)
	}
	for _, p := range s.Ports {
		if slices.Contains(o.Ports, p) {
			return lacks(lb.PortClash, "where Service %s holds port %s/%d: change the port or the sharing key", o.Key, p.Protocol, p.Port)
		}
	}
	return nil
}

// shareable says why two Services cannot come to share an address of the pool.
func shareable(s, o *subject, pool *supply) *lack {
	if l := agree(s, o); l != nil {
		return l
	}
	if s.Key.Namespace != o.Key.Namespace && (pool == nil || !pool.ShareAcross) {
		return lacks(lb.NotShareable, "which Service %s holds: the pool's sharing.scope is Namespace", o.Key)
	}
	return nil
}

// crowded says that no more Services may share the address.
func (a *assigner) crowded(s *subject, pool *supply, t tenancy) *lack {
	n := t.holders()
	switch {
	case n == 0:
		return nil
	case pool != nil && pool.MaxServices > 0 && n >= pool.MaxServices:
		return lacks(lb.SharingLimit, "which %d Services share: the pool's sharing.maxServices is %d", n, pool.MaxServices)
	case s.SharingKey == "" && s.MaxShared > 0 && n >= s.MaxShared:
		return lacks(lb.SharingLimit, "which %d Services share: a load balancer takes %d, its owner included", n, s.MaxShared)
	}
	return nil
}

// quarantined says that the address waits for reuseDelay. Its last holder need not wait.
func (a *assigner) quarantined(s *subject, addr netip.Addr, pool *supply) *lack {
	until := a.memory.until(addr, pool)
	if !a.state.Now.Before(until) || a.memory.last[addr].Holder == s.Key {
		return nil
	}
	return lacks(lb.Quarantined, "which %s gave back and which the pool's reuseDelay keeps until %s", a.memory.last[addr].Holder, until.UTC().Format(time.RFC3339))
}

// overQuota says that the subject's namespace may not hold one address more.
func (a *assigner) overQuota(s *subject, pool *supply, family lb.Family, t tenancy) *lack {
	if pool == nil {
		return nil
	}
	most, bounded := pool.Quota[family]
	if !bounded || a.counted(s, t) {
		return nil
	}
	key := quotaKey{pool.Name, s.Key.Namespace, family}
	have := a.quota[key] + a.settled.quota[key]
	if f := slices.Index(s.Families, family); f >= 0 && s.held[f].IsValid() && a.index.find(s.held[f]) == pool {
		// The address that it would give up for this one, unless somebody else keeps it.
		if left := a.owners[s.held[f]]; left.holders() <= 1 && (left.floating == 0) == (s.floating == 0) && left.holders() == min(1, int(s.number)) {
			have--
		}
	}
	if have < most {
		return nil
	}
	return lacks(lb.QuotaExceeded, "but namespace %q holds %d of the %d %s addresses that its quota in pool %q allows", s.Key.Namespace, have, most, family, pool.Name)
}
