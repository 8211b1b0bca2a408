package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// refusal is why a request cannot be met.
type refusal struct {
	reason  lb.Reason
	message string
	// kept: the Service keeps an address that it does not request any more.
	kept bool
}

func refuse(reason lb.Reason, format string, args ...any) *refusal {
	return &refusal{reason: reason, message: fmt.Sprintf(format, args...)}
}

// admits returns why the subject cannot hold the address together with its present
// holders, or nil. The message continues after the address: "192.0.2.1, which …".
func (a *assigner) admits(s *subject, addr netip.Addr, pool *supply) *refusal {
	t := a.holders[addr]
	if r := a.beside(s, addr, pool, t); r != nil {
		return r
	}
	if r := a.quarantined(s, addr, pool); r != nil && !t.held() {
		return r
	}
	return a.overQuota(s, pool, lb.FamilyOf(addr), t)
}

func (a *assigner) beside(s *subject, addr netip.Addr, pool *supply, t holders) *refusal {
	switch {
	case t.claimant != nil && !t.claimedBy(s):
		return refuse(lb.AddressInUse, "which %s holds", s.named(*t.claimant))
	case s.fip != nil && t.floating != nil && t.floating != s:
		return refuse(lb.AddressInUse, "which %s owns", s.named(t.floating.party()))
	case s.fip != nil:
		for _, o := range t.services {
			if !o.cedes(s) {
				return refuse(
					lb.AddressInUse,
					"which %s holds: set spec.serviceName to take it over with the Service",
					s.named(o.party()),
				)
			}
		}
		return nil
	case t.floating != nil && !s.claims(t.floating):
		return s.owned(t.floating)
	case s.holds(addr):
		return nil
	}
	n := len(t.services)
	if n >= maxSharers {
		return refuse(lb.SharingLimit, "which %d Services share: no more than %d may", n, maxSharers)
	}
	for _, o := range t.services {
		if r := shareable(s, o, pool); r != nil {
			return r
		}
	}
	if r := s.clash(t, func(*subject) bool { return false }); r != nil {
		return r
	}
	switch {
	case n > 0 && pool != nil && pool.MaxServices > 0 && n >= pool.MaxServices:
		return refuse(
			lb.SharingLimit,
			"which %d Services share: the pool's sharing.maxServices is %d",
			n,
			pool.MaxServices,
		)
	case n > 0 && s.SharingKey == "" && s.MaxShared > 0 && n >= s.MaxShared:
		return refuse(
			lb.SharingLimit,
			"which %d Services share: a load balancer takes %d, its owner included",
			n,
			s.MaxShared,
		)
	}
	return nil
}

// local reports whether the spec asks for externalTrafficPolicy Local: a Service that becomes proxied keeps its terms
// and its address.
func (s *subject) local() bool { return s.Local && !s.LocalByProxy }

// agree returns why two Services cannot hold the same address, whatever its pool allows and their ports are.
func agree(s, o *subject) *refusal {
	switch {
	case s.key == "" || s.key != o.key:
		return refuse(lb.AddressInUse, "which %s holds", s.named(o.party()))
	case s.Internal != o.Internal:
		return refuse(
			lb.NotShareable,
			"which %s holds: an internal Service and an external one never share",
			s.named(o.party()),
		)
	case s.local() != o.local():
		return refuse(
			lb.NotShareable,
			"which %s holds with another externalTrafficPolicy: Services that share have the same",
			s.named(o.party()),
		)
	case s.local() && (s.Backend == "" || s.Backend != o.Backend):
		return refuse(
			lb.NotShareable,
			"which %s holds: under externalTrafficPolicy Local, Services that share have the same selector",
			s.named(o.party()),
		)
	}
	return nil
}

// clash returns a refusal if a Service that is not excused holds a port of the subject on the address of these holders.
func (s *subject) clash(t holders, excused func(*subject) bool) *refusal {
	for _, p := range s.Ports {
		o := t.ports[p.Frontend()]
		if o == nil || o == s || excused(o) {
			continue
		}
		if s.Key.Namespace != o.Key.Namespace {
			return refuse(lb.PortClash, "where %s holds one of its ports", s.named(o.party()))
		}
		return refuse(lb.PortClash, "where %s holds port %s/%d", s.named(o.party()), p.Protocol, p.Port)
	}
	return nil
}

// shareable returns why two Services cannot start to share an address of the pool.
func shareable(s, o *subject, pool *supply) *refusal {
	if r := agree(s, o); r != nil {
		return r
	}
	switch across := s.Key.Namespace != o.Key.Namespace; {
	case len(o.Unserved) > 0: // no Service may take these ports meanwhile
		return refuse(lb.NotShareable, "which %s holds, beyond the bound of its namespace's ports", s.named(o.party()))
	case o.Proxied && !s.AsksProxy: // all on the address would lose their proxies
		return refuse(
			lb.NotShareable,
			"which %s holds by proxies: Services that share with it ask for proxies too",
			s.named(o.party()),
		)
	case s.Internal && s.SharingKey == "":
		return refuse(
			lb.NotShareable,
			"which %s holds: internal Services do not share by load-balancer-id, but by holdfast.dev/sharing-key",
			s.named(o.party()),
		)
	case across && (pool == nil || !pool.ShareAcross):
		return refuse(lb.NotShareable, "which %s holds: the pool's sharing.scope is Namespace", s.named(o.party()))
	case across && s.local():
		return refuse(
			lb.NotShareable,
			"which %s holds: under externalTrafficPolicy Local, Services that share have the same pods",
			s.named(o.party()),
		)
	}
	return nil
}

// maxSharers bounds the Services on one address, whatever its pool allows: each is compared with all.
const maxSharers = 256

// quarantined returns a refusal during the address's reuseDelay. Its last holder need not wait.
func (a *assigner) quarantined(s *subject, addr netip.Addr, pool *supply) *refusal {
	until, by := a.memory.until(addr, pool), a.memory.last[addr].Holder
	if !a.state.Now.Before(until) || by == s.Key {
		return nil
	}
	holder := "another namespace"
	if by.Namespace == s.Key.Namespace {
		holder = by.String()
	}
	return refuse(
		lb.Quarantined,
		"which %s gave back and which the pool's reuseDelay keeps until %s",
		holder,
		stamp(until),
	)
}

// overQuota says that the subject's namespace may not hold one address more.
func (a *assigner) overQuota(s *subject, pool *supply, family lb.Family, t holders) *refusal {
	if pool == nil {
		return nil
	}
	quota, bounded := pool.Quota[family]
	if !bounded || a.counted(s, t) {
		return nil
	}
	key := quotaKey{pool.Name, s.Key.Namespace, family}
	have := a.quota[key]
	if f := slices.Index(s.Families, family); f >= 0 && s.held[f].IsValid() && a.index.Find(s.held[f]) == pool {
		// The address that it would give up for this one, unless another Service keeps it.
		left := a.holders[s.held[f]]
		if (left.floating != nil) == (s.fip != nil) &&
			!slices.ContainsFunc(left.services, func(o *subject) bool { return o != s }) {
			have--
		}
	}
	if have < quota {
		return nil
	}
	return refuse(
		lb.QuotaExceeded,
		"but namespace %q holds %d of the %d %s addresses that its quota in pool %q allows",
		s.Key.Namespace,
		have,
		quota,
		family,
		pool.Name,
	)
}

// maxTried bounds the addresses of one key that a Service tries to share before it takes one of its own.
const maxTried = 64

// sharedAddresses returns the addresses of the family that are held under the subject's key and that it may try to
// share.
func (s *subject) sharedAddresses(family lb.Family) []netip.Addr {
	if s.shared == nil {
		return nil
	}
	// IPv4 addresses come before IPv6 addresses.
	v6 := sort.Search(len(*s.shared), func(i int) bool { return lb.FamilyOf((*s.shared)[i]) == lb.IPv6 })
	addrs := (*s.shared)[v6:]
	if family == lb.IPv4 {
		addrs = (*s.shared)[:v6]
	}
	return addrs[:min(maxTried, len(addrs))]
}
