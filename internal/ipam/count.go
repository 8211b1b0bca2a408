package ipam

import (
	"math"
	"math/big"
	"net/netip"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// size counts all addresses of the family that the pool may assign, but for n of them, which are among these. The result is
// capped at the largest int64.
func (s *supply) size(family lb.Family, n int64) int64 {
	all := big.NewInt(-n)
	for _, r := range s.Ranges {
		if lb.FamilyOf(r.From) != family {
			continue
		}
		from, to := number(r.From), number(r.To)
		all.Add(all, to.Sub(to, from)).Add(all, big.NewInt(1))
		if s.AvoidBuggyIPs && r.From.Is4() {
			all.Sub(all, big.NewInt(buggy(r)))
		}
	}
	for addr := range s.NodeAddresses {
		if lb.FamilyOf(addr) == family && !s.isBuggy(addr) {
			all.Sub(all, big.NewInt(1))
		}
	}
	if !all.IsInt64() {
		return math.MaxInt64
	}
	return all.Int64()
}

// buggy counts the IPv4 addresses of the range that end in .0 or .255.
func buggy(r lb.Range) int64 {
	below := func(n int64) int64 { return (n+255)/256 + n/256 }
	return below(number(r.To).Int64()+1) - below(number(r.From).Int64())
}

func number(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }
