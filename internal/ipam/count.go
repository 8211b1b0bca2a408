package ipam

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// size counts all addresses of the family that the pool may assign.
func (s *supply) size(family lb.Family) count {
	var n count
	for _, r := range s.Ranges {
		if lb.FamilyOf(r.From) != family {
			continue
		}
		n = n.plus(distance(r.From, r.To).plus(count{lo: 1}))
		if s.AvoidBuggyIPs && r.From.Is4() {
			n = n.plus(count{lo: buggy(r)}.negative())
		}
	}
	for addr := range s.NodeAddresses {
		if lb.FamilyOf(addr) == family && !s.isBuggy(addr) {
			n = n.plus(count{lo: 1}.negative())
		}
	}
	return n
}

// buggy counts the IPv4 addresses of the range that end in .0 or .255.
func buggy(r lb.Range) uint64 {
	below := func(n uint64) uint64 { return (n+255)/256 + n/256 }
	from, to := number(r.From).lo&math.MaxUint32, number(r.To).lo&math.MaxUint32
	return below(to+1) - below(from)
}

// count is an unsigned 128-bit number. Ranges are disjoint and no pool holds
// all of IPv6, so no sum overflows.
type count struct {
	hi, lo uint64
}

func number(a netip.Addr) count {
	b := a.As16()
	return count{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func distance(from, to netip.Addr) count {
	return number(to).plus(number(from).negative())
}

func (c count) plus(d count) count {
	lo, carry := bits.Add64(c.lo, d.lo, 0)
	hi, _ := bits.Add64(c.hi, d.hi, carry)
	return count{hi, lo}
}

// negative is the two's complement.
func (c count) negative() count {
	return count{^c.hi, ^c.lo}.plus(count{lo: 1})
}

// minus subtracts n, which is never more than c. The result is capped at the largest int64.
func (c count) minus(n int64) int64 {
	rest := c.plus(count{lo: uint64(n)}.negative())
	if rest.hi > 0 || rest.lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(rest.lo)
}
