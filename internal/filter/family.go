package filter

import (
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// family is what differs between IPv4 and IPv6 as the table sees them.
type family struct {
	lb.Family
	// suffix of the names of sets and chains.
	suffix string
	// proto is the NFPROTO number.
	proto byte
	// size of an address, and where source and destination lie in the header (RFC 791 section 3.1, RFC
	// 8200 section 3), all in bytes.
	size, source, destination uint32
	addrType                  nftables.SetDatatype
	// icmp is the protocol number of the family's ICMP, echo the type of its echo request (RFC 792, RFC
	// 4443 section 4.1).
	icmp, echo byte
	// checksum: the header has one, at checksumOffset.
	checksum       bool
	checksumOffset uint32
	// host is how many leading bits of a source are one source to a rate limit: an IPv6 host has all of a
	// /64 at its disposal.
	host int
}

// families in the order of their rules.
func families() [2]*family {
	return [2]*family{
		{
			Family: lb.IPv4, suffix: "4", proto: unix.NFPROTO_IPV4, size: 4, source: 12, destination: 16,
			addrType: nftables.TypeIPAddr, icmp: unix.IPPROTO_ICMP, echo: 8, checksum: true, checksumOffset: 10, host: 32,
		},
		{
			Family: lb.IPv6, suffix: "6", proto: unix.NFPROTO_IPV6, size: 16, source: 8, destination: 24,
			addrType: nftables.TypeIP6Addr, icmp: unix.IPPROTO_ICMPV6, echo: 128, host: 64,
		},
	}
}

// has reports whether an address is of this family.
func (f *family) has(a netip.Addr) bool { return a.IsValid() && lb.FamilyOf(a) == f.Family }

// words is how many 32-bit registers an address fills.
func (f *family) words() uint32 { return f.size / 4 }
