package lb

import (
	"cmp"
	"net/netip"
	"slices"
)

// Range is all addresses from From to To, both included: of one family, From <= To.
type Range struct {
	From, To netip.Addr
}

// Contains reports whether a lies in the range.
func (r Range) Contains(a netip.Addr) bool {
	return a.BitLen() == r.From.BitLen() && !a.Less(r.From) && !r.To.Less(a)
}

// Overlaps reports whether the two ranges share an address.
func (r Range) Overlaps(s Range) bool {
	return r.From.BitLen() == s.From.BitLen() && !r.To.Less(s.From) && !s.To.Less(r.From)
}

// Intersect returns what two ranges that overlap have in common.
func (r Range) Intersect(s Range) Range {
	if r.From.Less(s.From) {
		r.From = s.From
	}
	if s.To.Less(r.To) {
		r.To = s.To
	}
	return r
}

// Subtract returns the parts of ranges that lie in none of the others, which are in any order and may overlap.
func Subtract(ranges, others []Range) []Range {
	others = slices.SortedFunc(slices.Values(others), Range.Compare)
	var out []Range
	for _, r := range ranges {
		from := r.From
		for _, o := range others {
			if !from.IsValid() || r.To.Less(o.From) {
				break
			}
			if !o.Overlaps(Range{From: from, To: r.To}) {
				continue
			}
			if from.Less(o.From) {
				out = append(out, Range{From: from, To: o.From.Prev()})
			}
			from = o.To.Next()
		}
		if from.IsValid() && !r.To.Less(from) {
			out = append(out, Range{From: from, To: r.To})
		}
	}
	return out
}

// Joined returns the ranges in order, and joins those that overlap or touch.
func Joined(ranges []Range) []Range {
	var out []Range
	for _, r := range slices.SortedFunc(slices.Values(ranges), Range.Compare) {
		if n := len(out); n > 0 && (out[n-1].Overlaps(r) || out[n-1].To.Next() == r.From) {
			if out[n-1].To.Less(r.To) {
				out[n-1].To = r.To
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

// Compare orders ranges by their first addresses, then by their last.
func (r Range) Compare(s Range) int { return cmp.Or(r.From.Compare(s.From), r.To.Compare(s.To)) }

// String returns "from-to", or the address alone if both are the same.
func (r Range) String() string {
	if r.From == r.To {
		return r.From.String()
	}
	return r.From.String() + "-" + r.To.String()
}

// Prefixes returns the fewest prefixes that cover exactly the range, in order.
func (r Range) Prefixes() (out []netip.Prefix) {
	for from := r.From; from.IsValid() && !r.To.Less(from); {
		widest := netip.PrefixFrom(from, from.BitLen())
		for bits := from.BitLen() - 1; bits >= 0; bits-- {
			wider := netip.PrefixFrom(from, bits)
			if wider.Masked().Addr() != from || r.To.Less(LastOf(wider)) {
				break
			}
			widest = wider
		}
		out = append(out, widest)
		from = LastOf(widest).Next()
	}
	return out
}

// LastOf returns the last address of a masked prefix.
func LastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(b) // b has the length of an address
	return last
}
