package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// maxSharers bounds the Services on one address, whatever its pool allows: each is compared with all others.
	maxSharers = 256
	// maxTried bounds the addresses of one key that a Service tries to share before it takes an address of its own.
	maxTried = 64
)

// refusal is the reason why a request cannot be met.
type refusal struct {
	reason  lb.Reason
	message string
	// isKept reports whether the Service keeps an address that it no longer requests.
	isKept bool
}

// refuse returns a refusal with a formatted message.
func refuse(reason lb.Reason, format string, args ...any) *refusal {
	return &refusal{reason: reason, message: fmt.Sprintf(format, args...)}
}

// refuseFor returns a refusal of the subject because of a holder, which format names.
func (s *subject) refuseFor(holder *subject, reason lb.Reason, format string) *refusal {
	return refuse(reason, format, s.nameOf(holder.id()))
}

// checkHold returns a refusal if the subject cannot hold the address together with its present holders. The message
// continues after the address: "192.0.2.1, which …".
func (a *assigner) checkHold(s *subject, addr netip.Addr, pool *supply) *refusal {
	t := a.holders[addr]
	r := a.checkHolders(s, addr, pool, t)
	if r != nil {
		return r
	}

	if !t.isHeld() {
		r := a.checkQuarantine(s, addr, pool)
		if r != nil {
			return r
		}
	}

	return a.checkQuota(s, pool, lb.FamilyOf(addr), t)
}

// checkHolders returns a refusal if the holders of an address, or its claimant, exclude the subject.
func (a *assigner) checkHolders(
	s *subject,
	addr netip.Addr,
	pool *supply,
	t addressHolders,
) *refusal {
	switch {
	case t.claimant != nil && !t.isClaimedBy(s):
		return refuse(lb.AddressInUse, "which %s holds", s.nameOf(*t.claimant))
	case s.fip != nil:
		return checkFloatingHolders(s, t)
	case t.floating != nil && !s.claims(t.floating):
		return s.refuseOwned(t.floating)
	case s.holds(addr):
		return nil
	}

	if len(t.services) > 0 {
		return a.checkSharers(s, addr, pool, t)
	}

	return nil
}

// checkSharers returns a refusal if a Service cannot share an address with the Services that hold it.
func (a *assigner) checkSharers(
	s *subject,
	addr netip.Addr,
	pool *supply,
	t addressHolders,
) *refusal {
	n := len(t.services)
	if n >= maxSharers {
		return refuse(lb.SharingLimit, "which %d Services share: no more than %d may", n, maxSharers)
	}

	for _, o := range t.services {
		r := checkShareable(s, o, pool)
		if r != nil {
			return r
		}
	}

	excuseNone := func(*subject) bool { return false }
	r := s.checkPorts(t, excuseNone)
	if r != nil {
		return r
	}

	r = a.checkSlices(s, addr)
	if r != nil {
		return r
	}

	isPoolFull := pool != nil && pool.MaxServices > 0 && n >= pool.MaxServices
	if isPoolFull {
		return refuse(lb.SharingLimit, "which %d Services share: the pool's sharing.maxServices is %d",
			n, pool.MaxServices)
	}

	isIDFull := s.SharingKey == "" &&
		s.MaxShared > 0 &&
		n >= s.MaxShared
	if isIDFull {
		return refuse(lb.SharingLimit, "which %d Services share: a load balancer takes %d, its owner included",
			n, s.MaxShared)
	}

	return nil
}

// checkFloatingHolders returns a refusal if the holders of an address exclude a FloatingIP.
func checkFloatingHolders(s *subject, t addressHolders) *refusal {
	if t.floating != nil && t.floating != s {
		return s.refuseFor(t.floating, lb.AddressInUse, "which %s owns")
	}

	for _, o := range t.services {
		if !o.leavesTo(s) {
			return s.refuseFor(o, lb.AddressInUse,
				"which %s holds: set spec.serviceName to take it over with the Service")
		}
	}

	return nil
}

// isLocal reports whether the spec asks for externalTrafficPolicy Local. A Service that becomes proxied keeps its terms
// and its address.
func (s *subject) isLocal() bool {
	return s.Local && !s.LocalByProxy
}

// checkCompatible returns a refusal if two Services cannot hold the same address, whatever its pool allows and whatever
// ports they have.
func checkCompatible(s, o *subject) *refusal {
	hasSameKey := s.shareKey != "" && s.shareKey == o.shareKey
	hasSameBackend := s.Backend != "" && s.Backend == o.Backend
	switch {
	case !hasSameKey:
		return s.refuseFor(o, lb.AddressInUse, "which %s holds")
	case s.Internal != o.Internal:
		return s.refuseFor(o, lb.NotShareable,
			"which %s holds: an internal Service and an external one never share")
	case s.isLocal() != o.isLocal():
		return s.refuseFor(o, lb.NotShareable,
			"which %s holds with another externalTrafficPolicy: Services that share have the same")
	case s.isLocal() && !hasSameBackend:
		return s.refuseFor(o, lb.NotShareable,
			"which %s holds: under externalTrafficPolicy Local, Services that share have the same selector")
	}

	return nil
}

// checkPorts returns a refusal if another holder of the address has a port of the subject. Excused holders do not
// count.
func (s *subject) checkPorts(t addressHolders, isExcused func(*subject) bool) *refusal {
	for _, p := range s.Ports {
		o := t.ports[p.Frontend()]
		if o == nil || o == s || isExcused(o) {
			continue
		}

		if s.Key.Namespace != o.Key.Namespace {
			return s.refuseFor(o, lb.PortClash, "where %s holds one of its ports")
		}

		name := s.nameOf(o.id())
		return refuse(lb.PortClash, "where %s holds port %s/%d", name, p.Protocol, p.Port)
	}

	return nil
}

// checkSlices returns a refusal if pods send from a port of the subject at the address.
func (a *assigner) checkSlices(s *subject, addr netip.Addr) *refusal {
	compare := func(slice lb.PortSlice, addr netip.Addr) int {
		return slice.Address.Compare(addr)
	}
	first, _ := slices.BinarySearchFunc(a.state.Slices, addr, compare)
	for _, slice := range a.state.Slices[first:] {
		if slice.Address != addr {
			break
		}
		for _, p := range s.Ports {
			if slice.Has(p.Port) {
				return refuse(lb.PortClash, "where pods send from port %d (EgressAllocation)", p.Port)
			}
		}
	}

	return nil
}

// checkShareable returns a refusal if two Services cannot start to share an address of the pool.
func checkShareable(s, o *subject, pool *supply) *refusal {
	r := checkCompatible(s, o)
	if r != nil {
		return r
	}

	isAcross := s.Key.Namespace != o.Key.Namespace
	mayShareAcross := pool != nil && pool.ShareAcross
	switch {
	case len(o.Unserved) > 0: // no Service may take these ports meanwhile
		return s.refuseFor(o, lb.NotShareable, "which %s holds with ports that are not served")
	case o.Proxied && !s.AsksProxy: // all Services on the address would lose their proxies
		return s.refuseFor(o, lb.NotShareable,
			"which %s holds by proxies: Services that share with it ask for proxies too")
	case s.Internal && s.SharingKey == "":
		return s.refuseFor(o, lb.NotShareable,
			"which %s holds: internal Services do not share by load-balancer-id, but by holdfast.dev/sharing-key")
	case isAcross && !mayShareAcross:
		return s.refuseFor(o, lb.NotShareable, "which %s holds: the pool's sharing.scope is Namespace")
	case isAcross && s.isLocal():
		return s.refuseFor(o, lb.NotShareable,
			"which %s holds: under externalTrafficPolicy Local, Services that share have the same pods")
	}

	return nil
}

// checkQuarantine returns a refusal during the address's reuseDelay. Its last holder need not wait.
func (a *assigner) checkQuarantine(s *subject, addr netip.Addr, pool *supply) *refusal {
	until := a.releases.reservedUntil(addr, pool)
	holder := a.releases.byAddress[addr].Holder
	hasEnded := !a.state.Now.Before(until)
	if hasEnded || holder == s.Key {
		return nil
	}

	name := "another namespace"
	if holder.Namespace == s.Key.Namespace {
		name = holder.String()
	}

	return refuse(lb.Quarantined, "which %s gave back and which the pool's reuseDelay keeps until %s",
		name, formatTime(until))
}

// checkQuota returns a refusal if the subject's namespace may not hold another address of the pool. t are the holders
// of the address.
func (a *assigner) checkQuota(s *subject, pool *supply, family lb.Family, t addressHolders) *refusal {
	if pool == nil {
		return nil
	}

	quota, hasQuota := pool.Quota[family]
	if !hasQuota || a.isCounted(s, t) {
		return nil
	}

	have := a.quota[s.quotaKey(pool, family)]
	if a.wouldFree(s, pool, family) {
		have--
	}
	if have < quota {
		return nil
	}

	return refuse(lb.QuotaExceeded, "but namespace %q holds %d of the %d %s addresses that its quota in pool %q allows",
		s.Key.Namespace, have, quota, family, pool.Name)
}

// wouldFree reports whether the subject would leave an address of the pool and the family for another one, and no other
// Service keeps that address.
func (a *assigner) wouldFree(s *subject, pool *supply, family lb.Family) bool {
	f := slices.Index(s.Families, family)
	if f < 0 {
		return false
	}

	held := s.held[f]
	isOfPool := held.IsValid() && a.index.Find(held) == pool
	if !isOfPool {
		return false
	}

	old := a.holders[held]
	isOwner := (old.floating != nil) == (s.fip != nil)
	hasOthers := slices.ContainsFunc(old.services, func(o *subject) bool {
		return o != s
	})
	return isOwner && !hasOthers
}

// sharedAddresses returns the addresses of the family that are held under the subject's key and that it may try to
// share.
func (s *subject) sharedAddresses(family lb.Family) []netip.Addr {
	if s.shared == nil {
		return nil
	}

	// IPv4 addresses come before IPv6 addresses.
	all := *s.shared
	firstV6 := sort.Search(len(all), func(i int) bool {
		return lb.FamilyOf(all[i]) == lb.IPv6
	})
	addrs := all[firstV6:]
	if family == lb.IPv4 {
		addrs = all[:firstV6]
	}

	return addrs[:min(maxTried, len(addrs))]
}
