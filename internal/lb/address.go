package lb

import (
	"cmp"
	"net/netip"
)

// Family is an IP version, written as in the Kubernetes API.
type Family string

// The two families, as in Service.spec.ipFamilies.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// FamilyOf returns the family of a valid address; 4-in-6 counts as IPv6.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

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

// Compare orders ranges by their first addresses, then by their last.
func (r Range) Compare(s Range) int { return cmp.Or(r.From.Compare(s.From), r.To.Compare(s.To)) }

// String returns "from-to", or the address alone if both are the same.
func (r Range) String() string {
	if r.From == r.To {
		return r.From.String()
	}
	return r.From.String() + "-" + r.To.String()
}
