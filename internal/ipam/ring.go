package ipam

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// ring is what is held under one sharing key.
type ring struct {
	// addrs are ordered.
	addrs []netip.Addr
	// of counts the addresses of a family, used those on which a port is taken: a Service whose port is
	// taken on all of them need not try each.
	of   map[lb.Family]int
	used map[familyPort]int
}

type familyPort struct {
	lb.Family
	lb.Port
}

func newRing() *ring {
	return &ring{of: map[lb.Family]int{}, used: map[familyPort]int{}}
}

// join records that the subject now holds the address.
func (r *ring) join(s *subject, addr netip.Addr) {
	if i, found := slices.BinarySearchFunc(r.addrs, addr, netip.Addr.Compare); !found {
		r.addrs = slices.Insert(r.addrs, i, addr)
		r.of[lb.FamilyOf(addr)]++
	}
	for _, p := range s.Ports {
		r.used[familyPort{lb.FamilyOf(addr), p}]++
	}
}

// leave records that the subject no longer holds the address; last: no other subject of the key does.
func (r *ring) leave(s *subject, addr netip.Addr, last bool) {
	i, found := slices.BinarySearchFunc(r.addrs, addr, netip.Addr.Compare)
	if found && last {
		r.addrs = slices.Delete(slices.Clone(r.addrs), i, i+1)
		r.of[lb.FamilyOf(addr)]--
	}
	for _, p := range s.Ports {
		r.used[familyPort{lb.FamilyOf(addr), p}]--
	}
}

// worthwhile returns the addresses that the subject may try to share. If one of its
// ports is taken on all, that is a single address, to explain the refusal.
func (r *ring) worthwhile(s *subject, family lb.Family) []netip.Addr {
	full := slices.ContainsFunc(s.Ports, func(p lb.Port) bool { return r.used[familyPort{family, p}] >= r.of[family] })
	if i := slices.IndexFunc(r.addrs, func(a netip.Addr) bool { return lb.FamilyOf(a) == family }); full && i >= 0 {
		return r.addrs[i : i+1]
	}
	return r.addrs
}
