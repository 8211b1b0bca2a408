package ipam

import (
	"net/netip"
	"slices"
	"sort"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// ring is what is held under one sharing key.
type ring struct {
	// addrs are ordered.
	addrs []netip.Addr
	// used counts the addresses of a family on which a port is taken: a Service whose port is taken on all
	// of them need not try each.
	used map[familyPort]int
	// by has the number of the subject that holds a port of an address.
	by map[addressPort]int32
}

type addressPort struct {
	netip.Addr
	lb.Port
}

type familyPort struct {
	lb.Family
	lb.Port
}

func newRing() *ring {
	return &ring{used: map[familyPort]int{}, by: map[addressPort]int32{}}
}

// join records that the subject now holds the address.
func (r *ring) join(s *subject, addr netip.Addr) {
	if i, found := slices.BinarySearchFunc(r.addrs, addr, netip.Addr.Compare); !found {
		r.addrs = slices.Insert(r.addrs, i, addr)
	}
	for _, p := range s.Ports {
		r.used[familyPort{lb.FamilyOf(addr), p}]++
		if at := (addressPort{addr, p}); r.by[at] == 0 {
			r.by[at] = s.number
		}
	}
}

// leave records that the subject no longer holds the address; last: no other subject of the key does.
func (r *ring) leave(s *subject, addr netip.Addr, last bool) {
	i, found := slices.BinarySearchFunc(r.addrs, addr, netip.Addr.Compare)
	if found && last {
		r.addrs = slices.Delete(slices.Clone(r.addrs), i, i+1)
	}
	for _, p := range s.Ports {
		r.used[familyPort{lb.FamilyOf(addr), p}]--
		if at := (addressPort{addr, p}); r.by[at] == s.number {
			delete(r.by, at)
		}
	}
}

// maxTried bounds the addresses of one key that a Service tries to share before it takes one of its own.
const maxTried = 64

// worthwhile returns the addresses of the family that the subject may try to share. If one of its
// ports is taken on all, that is a single address, to explain the refusal.
func (r *ring) worthwhile(s *subject, family lb.Family) []netip.Addr {
	addrs := r.of(family)
	if slices.ContainsFunc(s.Ports, func(p lb.Port) bool { return r.used[familyPort{family, p}] >= len(addrs) }) {
		return addrs[:min(1, len(addrs))]
	}
	return addrs[:min(maxTried, len(addrs))]
}

// of returns the addresses of the family: IPv4 addresses come before IPv6 addresses.
func (r *ring) of(family lb.Family) []netip.Addr {
	v6 := sort.Search(len(r.addrs), func(i int) bool { return lb.FamilyOf(r.addrs[i]) == lb.IPv6 })
	if family == lb.IPv4 {
		return r.addrs[:v6]
	}
	return r.addrs[v6:]
}
