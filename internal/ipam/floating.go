package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sort"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Floating is the decision for one FloatingIP: its addresses and the Service that uses them.
type Floating struct {
	Assignment
	// BoundTo is the Service that uses it, the zero Key for none.
	BoundTo  lb.Key
	BoundUID string
	// Delete the FloatingIP with its Service, which is gone.
	Delete bool
}

// Keep is a FloatingIP to create for a Service that holds the addresses already.
type Keep struct {
	Service   lb.Key
	Addresses []netip.Addr
	// Refusal says why it is not created; empty if it is.
	Refusal string
}

// maxOwned bounds the addresses of a pool that FloatingIPs of a namespace own when it keeps one more, where the pool
// has no quota.
const maxOwned = 64

// mayClaim reports whether the Service is named or names a FloatingIP, or asks for an address that one owns.
func (a *assigner) mayClaim(s *subject) bool {
	return s.FloatingIP != "" || len(a.dedicated[s.Key]) > 0 ||
		slices.ContainsFunc(s.RequestedAddresses, func(addr netip.Addr) bool { return a.holders[addr].floating != nil })
}

// claims reports whether the Service may use the FloatingIP and asks to. A
// Service that joins a load balancer follows that load balancer.
func (s *subject) claims(fip *subject) bool {
	switch {
	case fip.Key.Namespace != s.Key.Namespace:
		return false
	case s.joins || fip.fip.ServiceName == s.Key.Name:
		return true
	case fip.isForAnother(s):
		return false
	}
	return s.FloatingIP == fip.Key.Name || slices.ContainsFunc(s.RequestedAddresses, func(addr netip.Addr) bool {
		return slices.Contains(fip.fip.Wanted, addr) || fip.holds(addr)
	})
}

// isForAnother reports whether the FloatingIP is for another Service, which exists. A Service that came to use it
// before keeps it: neither a Service that is created again nor an edit takes an address away.
func (s *subject) isForAnother(service *subject) bool {
	f := s.fip
	return f.ServiceName != "" &&
		f.ServiceName != service.Key.Name &&
		!f.ServiceGone &&
		!slices.ContainsFunc(service.Addresses, s.holds)
}

// owned reports which FloatingIP owns an address that the Service cannot use, and why it cannot.
func (s *subject) owned(fip *subject) *refusal {
	switch {
	case fip.Key.Namespace != s.Key.Namespace:
		return refuse(lb.AddressInUse, "which %s owns: only Services of its namespace may use it", s.named(fip.party()))
	case fip.isForAnother(s):
		return refuse(
			lb.AddressInUse,
			"which FloatingIP %s owns for Service %q: delete that Service, or take its name out of spec.serviceName",
			fip.Key,
			fip.fip.ServiceName,
		)
	}
	return refuse(lb.AddressInUse, "which FloatingIP %s owns: claim it by annotation holdfast.dev/floating-ip", fip.Key)
}

// cedes reports whether the Service leaves an address that it holds to a FloatingIP that requests it: it must still
// claim the FloatingIP when that has left the address by which the Service claims it now.
func (s *subject) cedes(fip *subject) bool {
	f := fip.fip
	return s.claims(fip) && (s.joins || f.ServiceName == s.Key.Name || s.FloatingIP == f.Key.Name ||
		slices.ContainsFunc(s.RequestedAddresses, func(addr netip.Addr) bool { return slices.Contains(f.Wanted, addr) }))
}

// boundTo returns the oldest Service that uses the FloatingIP, or nil.
func (a *assigner) boundTo(s *subject) *subject {
	var oldest *subject
	for _, addr := range s.held {
		if users := a.holders[addr].services; len(users) > 0 && (oldest == nil || byAge(users[0], oldest) < 0) {
			oldest = users[0]
		}
	}
	return oldest
}

func (a *assigner) floatingResult(s *subject) Floating {
	f := s.fip
	out := Floating{Assignment: a.holding(s)}
	if user := a.boundTo(s); user != nil {
		out.BoundTo, out.BoundUID = user.Key, user.UID
	}
	out.Delete = f.Delete && !f.Deleting && f.BoundTo != (lb.Key{}) && out.BoundTo == (lb.Key{}) && a.gone(f)
	out.Reason, out.Message = a.explainFloating(s, out, describe("", out.Assignment))
	if !s.dissolved {
		out.Awaits = s.lacks()
	}
	return out
}

func (a *assigner) explainFloating(s *subject, out Floating, holds string) (lb.Reason, string) {
	if s.dissolved {
		return lb.Deleting, "gives back its addresses"
	}
	_, r := a.find(s)
	switch {
	case s.fip.Deleting && out.BoundTo == (lb.Key{}):
		return lb.Deleting, "gives back its addresses when their Service has left them"
	case s.fip.Deleting:
		return lb.Deleting, fmt.Sprintf("waits for Service %s, which uses %s", out.BoundTo, holds)
	case r != nil && len(out.Addresses) == 0 && len(s.lacks()) > 0:
		return r.reason, r.message + "; it had that address before: to take another, remove the annotation holdfast.dev/assigned"
	case r != nil && len(out.Addresses) == 0:
		return r.reason, r.message
	case r != nil:
		return r.reason, fmt.Sprintf("keeps %s; %s", holds, r.message)
	case out.BoundTo != (lb.Key{}):
		return lb.Bound, fmt.Sprintf("owns %s, used by Service %s", holds, out.BoundTo)
	}
	return lb.Available, fmt.Sprintf("owns %s, used by no Service", holds)
}

// gone reports whether the Service that used the FloatingIP no longer exists. One of another type
// exists: it may be of type LoadBalancer again.
func (a *assigner) gone(f *lb.FloatingIP) bool {
	if uid, exists := a.state.NotServed[f.BoundTo]; exists && (f.BoundUID == "" || uid == f.BoundUID) {
		return false
	}
	i, found := sort.Find(len(a.state.Services), func(i int) int { return f.BoundTo.Compare(a.state.Services[i].Key) })
	return !found || f.BoundUID != "" && a.state.Services[i].UID != f.BoundUID
}

// keeps lists the Services whose addresses must become a FloatingIP, with those that may not keep so many: addresses
// that outlive Services would pile up.
func (a *assigner) keeps() []Keep {
	var out []Keep
	owned := map[quotaKey]int{}
	for _, s := range a.floating {
		for _, addr := range s.held {
			if pool := a.index.Find(addr); pool != nil {
				owned[quotaKey{pool.Name, s.Key.Namespace, lb.FamilyOf(addr)}]++
			}
		}
	}
	for _, s := range a.open {
		if !s.KeepFloatingIP || a.named[s.Key] != nil {
			continue
		}
		k := Keep{Service: s.Key}
		for _, addr := range s.held {
			// Exclude addresses that a FloatingIP owns or that other Services share.
			if t := a.holders[addr]; addr.IsValid() && t.floating == nil && len(t.services) == 1 {
				k.Addresses = append(k.Addresses, addr)
				k.Refusal = cmp.Or(k.Refusal, a.keepable(s, addr, owned))
			}
		}
		if len(k.Addresses) > 0 {
			out = append(out, k)
		}
	}
	return out
}

// keepable returns why a FloatingIP may not own the address too that the Service holds, and otherwise counts it.
func (a *assigner) keepable(s *subject, addr netip.Addr, owned map[quotaKey]int) string {
	pool, family := a.index.Find(addr), lb.FamilyOf(addr)
	if pool == nil {
		return ""
	}
	limit, bounded := pool.Quota[family]
	if !bounded {
		limit = maxOwned
	}
	key := quotaKey{pool.Name, s.Key.Namespace, family}
	if owned[key] < limit {
		owned[key]++
		return ""
	}
	return fmt.Sprintf("FloatingIPs of namespace %q own %d %s addresses of pool %q, of which it may keep %d",
		s.Key.Namespace, owned[key], family, pool.Name, limit)
}
