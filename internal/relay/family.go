package relay

import (
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// family is what differs between IPv4 and IPv6.
type family struct {
	lb.Family
	table    nftables.TableFamily
	addrType nftables.SetDatatype
	// size of an address, and where the destination and the time to live, an octet, lie in the header (RFC 791
	// section 3.1, RFC 8200 section 3).
	size, destination, timeToLive uint32
	// icmp is the protocol number of the family's ICMP, and errors are the types of its errors, from and to.
	icmp   byte
	errors [][2]byte
}

// families in the order of all reports.
func families() []*family {
	return []*family{
		{
			Family: lb.IPv4, table: nftables.TableFamilyIPv4, addrType: nftables.TypeIPAddr, size: 4, destination: 16, timeToLive: 8,
			// Destination unreachable, time exceeded and parameter problem (RFC 792).
			icmp: unix.IPPROTO_ICMP, errors: [][2]byte{{3, 3}, {11, 12}},
		},
		{
			Family: lb.IPv6, table: nftables.TableFamilyIPv6, addrType: nftables.TypeIP6Addr, size: 16, destination: 24, timeToLive: 7,
			// The same and packet too big (RFC 4443 section 3).
			icmp: unix.IPPROTO_ICMPV6, errors: [][2]byte{{1, 4}},
		},
	}
}

// has reports whether an address is of this family.
func (f *family) has(a netip.Addr) bool { return a.IsValid() && lb.FamilyOf(a) == f.Family }
