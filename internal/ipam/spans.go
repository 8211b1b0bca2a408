package ipam

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// spans is a set of addresses: ordered ranges that do not touch.
type spans []lb.Range

// at returns the index of the first range that does not end before the address, and whether it contains the address.
func (s spans) at(a netip.Addr) (int, bool) {
	i, _ := slices.BinarySearchFunc(s, a, func(r lb.Range, a netip.Addr) int { return r.To.Compare(a) })
	return i, i < len(s) && s[i].Contains(a)
}

// past returns the lowest address from a upwards that is not in the set; the zero Addr if there is none.
func (s spans) past(a netip.Addr) netip.Addr {
	if i, in := s.at(a); in {
		return s[i].To.Next()
	}
	return a
}

func (s *spans) add(a netip.Addr) {
	i, in := s.at(a)
	if in {
		return
	}
	after := i > 0 && (*s)[i-1].To.Next() == a
	before := i < len(*s) && (*s)[i].From == a.Next()
	switch {
	case after && before:
		(*s)[i-1].To = (*s)[i].To
		*s = slices.Delete(*s, i, i+1)
	case after:
		(*s)[i-1].To = a
	case before:
		(*s)[i].From = a
	default:
		*s = slices.Insert(*s, i, lb.Range{From: a, To: a})
	}
}

func (s *spans) remove(a netip.Addr) {
	i, in := s.at(a)
	if !in {
		return
	}
	r := &(*s)[i]
	switch {
	case r.From == r.To:
		*s = slices.Delete(*s, i, i+1)
	case r.From == a:
		r.From = a.Next()
	case r.To == a:
		r.To = a.Prev()
	default:
		left := lb.Range{From: r.From, To: a.Prev()}
		r.From = a.Next()
		*s = slices.Insert(*s, i, left)
	}
}
