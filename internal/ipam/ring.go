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
	// of counts the addresses of a family, used those of them on which a port is taken: who wants a port that is
	// taken on all of them need not look at each.
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

// join notes that the subject came to hold the address.
func (r *ring) join(s *subject, addr netip.Addr) {
	if i, found := slices.BinarySearchFunc(r.addrs, addr, netip.Addr.Compare); !found {
		r.addrs = slices.Insert(r.addrs, i, addr)
		r.of[lb.FamilyOf(addr)]++
	}
	for _, p := range s.Ports {
		r.used[familyPort{lb.FamilyOf(addr), p}]++
	}
}

// leave notes that the subject holds the address no more, and whether it was the last under the key.
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

// worthwhile returns the addresses that the subject may try to share: one, to say
// what is in the way, where a port of it is taken on all.
func (r *ring) worthwhile(s *subject, family lb.Family) []netip.Addr {
	full := slices.ContainsFunc(s.Ports, func(p lb.Port) bool { return r.used[familyPort{family, p}] >= r.of[family] })
	if i := slices.IndexFunc(r.addrs, func(a netip.Addr) bool { return lb.FamilyOf(a) == family }); full && i >= 0 {
		return r.addrs[i : i+1]
	}
	return r.addrs
}
