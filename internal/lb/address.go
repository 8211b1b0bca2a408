package lb

import (
	"fmt"
	"net/netip"
)

// Family is an IP version as an operator would write it.
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

// Range is an inclusive run of addresses of one family, From <= To.
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

// String returns "from-to", or the address alone where both are one.
func (r Range) String() string {
	if r.From == r.To {
		return r.From.String()
	}
	return r.From.String() + "-" + r.To.String()
}

// Key names a namespaced object.
type Key struct {
	Namespace, Name string
}

// String returns "namespace/name".
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// MarshalText makes logs and debug pages show a key as an operator would write it.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Compare orders keys by namespace, then name.
func (k Key) Compare(o Key) int {
	switch {
	case k.Namespace < o.Namespace:
		return -1
	case k.Namespace > o.Namespace:
		return 1
	case k.Name < o.Name:
		return -1
	case k.Name > o.Name:
		return 1
	}
	return 0
}

// Community is a BGP community (RFC 1997) or, with Large set, a large community (RFC 8092).
type Community struct {
	Large bool
	// A is the global administrator: 16 bits for a plain community, 32 for a large one.
	A uint32
	// B is the local part of a plain community (16 bits), or the first local part of a large one.
	B uint32
	// C is the second local part of a large community.
	C uint32
}

// String returns "a:b" or "large:a:b:c".
func (c Community) String() string {
	if c.Large {
		return fmt.Sprintf("large:%d:%d:%d", c.A, c.B, c.C)
	}
	return fmt.Sprintf("%d:%d", c.A, c.B)
}
