package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sort"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// maxOwned bounds the addresses of a pool that FloatingIPs of a namespace own when it keeps another one, if the pool
// has no quota.
const maxOwned = 64

// Floating is the decision for one FloatingIP: its addresses and the Service that uses them.
type Floating struct {
	Assignment
	// BoundTo is the Service that uses it; the zero Key for none.
	BoundTo lb.Key
	// BoundUID is the UID of that Service.
	BoundUID string
	// Delete reports whether to delete the FloatingIP, because its Service is gone.
	Delete bool
}

// Keep is a FloatingIP to create for a Service that holds the addresses already.
type Keep struct {
	Service   lb.Key
	Addresses []netip.Addr
	// Refusal is the reason why it is not created; empty if it is.
	Refusal string
}

// mayClaim reports whether the Service names a FloatingIP, is named by one, or asks for an address that one owns.
func (a *assigner) mayClaim(s *subject) bool {
	if s.FloatingIP != "" || len(a.dedicated[s.Key]) > 0 {
		return true
	}

	return slices.ContainsFunc(s.RequestedAddresses, func(addr netip.Addr) bool {
		return a.holders[addr].floating != nil
	})
}

// claims reports whether the Service may use the FloatingIP and asks to. A Service that joins a load balancer follows
// that load balancer.
func (s *subject) claims(fip *subject) bool {
	switch {
	case fip.Key.Namespace != s.Key.Namespace:
		return false
	case s.isJoining || fip.fip.ServiceName == s.Key.Name:
		return true
	case fip.isForAnother(s):
		return false
	case s.FloatingIP == fip.Key.Name:
		return true
	}

	return slices.ContainsFunc(s.RequestedAddresses, func(addr netip.Addr) bool {
		return slices.Contains(fip.fip.Wanted, addr) || fip.holds(addr)
	})
}

// isForAnother reports whether the FloatingIP is for another Service, which exists. A Service that already uses it
// keeps it: neither a Service that is created again nor an edit takes an address away.
func (s *subject) isForAnother(service *subject) bool {
	f := s.fip
	namesAnother := f.ServiceName != "" &&
		f.ServiceName != service.Key.Name &&
		!f.ServiceGone
	return namesAnother && !slices.ContainsFunc(service.Addresses, s.holds)
}

// refuseOwned returns the refusal of an address that the FloatingIP owns and the Service cannot use.
func (s *subject) refuseOwned(fip *subject) *refusal {
	switch {
	case fip.Key.Namespace != s.Key.Namespace:
		return s.refuseFor(fip, lb.AddressInUse, "which %s owns: only Services of its namespace may use it")
	case fip.isForAnother(s):
		return refuse(lb.AddressInUse,
			"which FloatingIP %s owns for Service %q: delete that Service, or take its name out of spec.serviceName",
			fip.Key, fip.fip.ServiceName)
	}

	return refuse(lb.AddressInUse, "which FloatingIP %s owns: claim it by annotation holdfast.dev/floating-ip", fip.Key)
}

// leavesTo reports whether the Service leaves an address that it holds to a FloatingIP that requests it. The Service
// must still claim the FloatingIP after that has left the address by which the Service claims it now.
func (s *subject) leavesTo(fip *subject) bool {
	if !s.claims(fip) {
		return false
	}

	f := fip.fip
	claimsByName := s.isJoining ||
		f.ServiceName == s.Key.Name ||
		s.FloatingIP == f.Key.Name
	if claimsByName {
		return true
	}

	return slices.ContainsFunc(s.RequestedAddresses, func(addr netip.Addr) bool {
		return slices.Contains(f.Wanted, addr)
	})
}

// boundTo returns the oldest Service that uses the FloatingIP, or nil.
func (a *assigner) boundTo(s *subject) *subject {
	var oldest *subject
	for _, addr := range s.held {
		users := a.holders[addr].services
		if len(users) == 0 {
			continue
		}

		first := users[0]
		if oldest == nil || compareAge(first, oldest) < 0 {
			oldest = first
		}
	}

	return oldest
}

// floatingResult returns the decision for a FloatingIP.
func (a *assigner) floatingResult(s *subject) Floating {
	f := s.fip
	out := Floating{Assignment: a.holding(s)}

	user := a.boundTo(s)
	if user != nil {
		out.BoundTo = user.Key
		out.BoundUID = user.UID
	}

	wasUsed := f.BoundTo != lb.Key{}
	mayDelete := f.Delete && !f.Deleting && wasUsed
	out.Delete = mayDelete && user == nil && a.isUserGone(f)

	holds := describe("", out.Assignment)
	out.Reason, out.Message = a.explainFloating(s, out, holds)
	if !s.isDissolved {
		out.Awaits = s.awaitedOrigins()
	}

	return out
}

// explainFloating returns the Reason and the Message of a FloatingIP. holds describes its addresses.
func (a *assigner) explainFloating(s *subject, out Floating, holds string) (lb.Reason, string) {
	if s.isDissolved {
		return lb.Deleting, "gives back its addresses"
	}

	isUsed := out.BoundTo != lb.Key{}
	switch {
	case s.fip.Deleting && !isUsed:
		return lb.Deleting, "gives back its addresses when their Service has left them"
	case s.fip.Deleting:
		return lb.Deleting, fmt.Sprintf("waits for Service %s, which uses %s", out.BoundTo, holds)
	}

	_, r := a.find(s)
	switch {
	case r != nil && len(out.Addresses) > 0:
		return r.reason, fmt.Sprintf("keeps %s; %s", holds, r.message)
	case r != nil && len(s.awaitedOrigins()) > 0:
		return r.reason, r.message +
			"; it had that address before: to take another, remove the annotation holdfast.dev/assigned"
	case r != nil:
		return r.reason, r.message
	case isUsed:
		return lb.Bound, fmt.Sprintf("owns %s, used by Service %s", holds, out.BoundTo)
	}

	return lb.Available, fmt.Sprintf("owns %s, used by no Service", holds)
}

// isUserGone reports whether the Service that used the FloatingIP no longer exists. A Service of another type still
// exists: it may become a LoadBalancer again.
func (a *assigner) isUserGone(f *lb.FloatingIP) bool {
	isSame := func(uid string) bool { return f.BoundUID == "" || uid == f.BoundUID }
	uid, ok := a.state.NotServed[f.BoundTo]
	if ok && isSame(uid) {
		return false
	}

	i, ok := sort.Find(len(a.state.Services), func(i int) int {
		return f.BoundTo.Compare(a.state.Services[i].Key)
	})
	isServed := ok && isSame(a.state.Services[i].UID)
	return !isServed
}

// floatingIPsToCreate lists the Services whose addresses must become a FloatingIP, and those that may not keep so many:
// addresses that outlive their Services would accumulate.
func (a *assigner) floatingIPsToCreate() []Keep {
	owned := a.countOwned()
	var out []Keep
	for _, s := range a.services {
		if !s.KeepFloatingIP || a.floatingByKey[s.Key] != nil {
			continue
		}

		k := Keep{Service: s.Key}
		for _, addr := range s.held {
			t := a.holders[addr]
			isOwnedOrShared := t.floating != nil || len(t.services) != 1
			if !addr.IsValid() || isOwnedOrShared {
				continue
			}

			k.Addresses = append(k.Addresses, addr)
			refusal := a.checkCreate(s, addr, owned)
			k.Refusal = cmp.Or(k.Refusal, refusal)
		}

		if len(k.Addresses) > 0 {
			out = append(out, k)
		}
	}

	return out
}

// countOwned counts the addresses of each pool that FloatingIPs of each namespace own.
func (a *assigner) countOwned() map[quotaKey]int {
	owned := map[quotaKey]int{}
	for _, s := range a.floating {
		for _, addr := range s.held {
			pool := a.index.Find(addr)
			if pool == nil {
				continue
			}

			key := s.quotaKey(pool, lb.FamilyOf(addr))
			owned[key]++
		}
	}

	return owned
}

// checkCreate returns the reason why a new FloatingIP may not own an address of the Service. If it may, checkCreate
// counts the address.
func (a *assigner) checkCreate(s *subject, addr netip.Addr, owned map[quotaKey]int) string {
	pool := a.index.Find(addr)
	if pool == nil {
		return ""
	}

	family := lb.FamilyOf(addr)
	limit, hasQuota := pool.Quota[family]
	if !hasQuota {
		limit = maxOwned
	}

	key := s.quotaKey(pool, family)
	if owned[key] < limit {
		owned[key]++
		return ""
	}

	return fmt.Sprintf("FloatingIPs of namespace %q own %d %s addresses of pool %q, of which it may keep %d",
		s.Key.Namespace, owned[key], family, pool.Name, limit)
}
