package unnumbered

import (
	"net/netip"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/ipv6"
)

const (
	// The lengths of both messages without options (RFC 4861 sections 4.1 and 4.2).
	solicitationLen, advertisementLen = 8, 16
	// The type of option that a solicitation of an unspecified address must not have.
	sourceLinkLayerAddress = 1
)

// kind of a message.
type kind uint8

// The messages of interest.
const (
	rejected kind = iota
	solicitation
	advertisement
)

// parse returns what an ICMPv6 message is, by the rules of RFC 4861 sections 6.1.1 and 6.1.2. The kernel has checked the
// checksum. Nothing inside is of interest, so options are only measured: a router may send any that no library knows.
func parse(b []byte, from netip.Addr, hops int) kind {
	if len(b) < solicitationLen || hops != ndp.HopLimit || b[1] != 0 {
		return rejected
	}
	switch ipv6.ICMPType(b[0]) {
	case ipv6.ICMPTypeRouterSolicitation:
		if bare, ok := options(b[solicitationLen:]); ok && (bare || !from.IsUnspecified()) {
			return solicitation
		}
	case ipv6.ICMPTypeRouterAdvertisement:
		if len(b) < advertisementLen || !from.Is6() || !from.IsLinkLocalUnicast() {
			return rejected
		}
		if _, ok := options(b[advertisementLen:]); ok {
			return advertisement
		}
	}
	return rejected
}

// options reports whether options are whole (RFC 4861 section 4.6), and none is the address of the sender's link.
func options(b []byte) (bare, ok bool) {
	bare = true
	for len(b) > 0 {
		// The length is in units of 8 octets; 0 would loop for ever.
		if len(b) < 8 || b[1] == 0 || int(b[1])*8 > len(b) {
			return false, false
		}
		bare = bare && b[0] != sourceLinkLayerAddress
		b = b[int(b[1])*8:]
	}
	return bare, true
}
