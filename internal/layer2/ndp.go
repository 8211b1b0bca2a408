package layer2

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// hopLimit proves that no router forwarded the packet (RFC 4861 section 3.1).
	hopLimit = 255
	// discoveryLen is the length of a Neighbor Solicitation or Advertisement without options (RFC
	// 4861 sections 4.3 and 4.4), and offTarget the offset of the target in both.
	discoveryLen = 24
	offTarget    = 8
	// offFlags is the offset of a Neighbor Advertisement's flags, and flagSolicited the flag of
	// an answer to a solicitation (RFC 4861 section 4.4).
	offFlags      = 4
	flagSolicited = 1 << 6
	flagOverride  = 1 << 5
	// optionSource and optionTarget are the types of the options with a link-layer address (RFC 4861 section 4.6.1).
	optionSource = 1
	optionTarget = 2
)

// ndpProtocol returns the protocol of IPv6.
func ndpProtocol() protocol {
	return protocol{
		index:     familyIndex(lb.IPv6),
		name:      string(lb.IPv6),
		etherType: unix.ETH_P_IPV6,
		filter:    ndpFilter,
		parse:     parseND,
		answer:    neighborAdvertisement,
		announce:  unsolicitedNA,
		request:   solicitationFrom,
		probe:     detectDuplicate,
		question:  unicastSolicitation,
		answers:   ndpAnswers(),
	}
}

// parseND reads a Neighbor Solicitation or Advertisement and validates it by RFC 4861
// sections 7.1.1 and 7.1.2.
func parseND(frame []byte, own lb.MAC) (message, frameResult) {
	p, result := header(frame, unix.ETH_P_IPV6, own)
	if result != answered {
		return message{}, result
	}

	icmp, result := discoveryMessage(p)
	if result != answered {
		return message{}, result
	}

	m := message{
		mac:       lb.MAC(frame[offSource:offEtherType]),
		sender:    netip.AddrFrom16([16]byte(p[8:24])),
		isUnicast: lb.MAC(frame[offDestination:offSource]) == own,
	}

	target := netip.AddrFrom16([16]byte(icmp[offTarget:discoveryLen]))
	if target.IsMulticast() || target.IsUnspecified() {
		return message{}, badTarget
	}

	if m.sender.IsMulticast() || !m.mac.IsUnicast() {
		return message{}, badSender
	}

	destination := netip.AddrFrom16([16]byte(p[24:40]))
	if ipv6.ICMPType(icmp[0]) == ipv6.ICMPTypeNeighborAdvertisement {
		m.claimed = target
		m.isReply = icmp[offFlags]&flagSolicited != 0
		return m, m.advertised(destination, icmp)
	}

	m.target = target
	if m.sender == target {
		m.claimed = target
	}

	return m, m.solicited(destination, icmp[discoveryLen:])
}

// discoveryMessage returns the Neighbor Solicitation or Advertisement in an IPv6 packet. The result of a valid message
// is answered.
func discoveryMessage(packet []byte) ([]byte, frameResult) {
	if len(packet) < ipv6.HeaderLen {
		return nil, badLength
	}

	if packet[0]>>4 != 6 {
		return nil, badFormat
	}

	if packet[6] != unix.IPPROTO_ICMPV6 {
		return nil, notRequest
	}

	// Ethernet's padding follows the payload.
	length := int(binary.BigEndian.Uint16(packet[4:]))
	if length == 0 || length > len(packet)-ipv6.HeaderLen {
		return nil, badLength
	}

	icmp := packet[ipv6.HeaderLen : ipv6.HeaderLen+length]
	kind := ipv6.ICMPType(icmp[0])
	switch {
	case kind != ipv6.ICMPTypeNeighborSolicitation && kind != ipv6.ICMPTypeNeighborAdvertisement:
		return nil, notRequest
	case len(icmp) < discoveryLen:
		return nil, badLength
	case packet[7] != hopLimit:
		return nil, badHopLimit
	case icmp[1] != 0:
		return nil, badFormat
	case checksum(packet[8:ipv6.HeaderLen], icmp) != 0:
		return nil, badChecksum
	}

	return icmp, answered
}

// solicited takes the asker's MAC from its Source Link-Layer Address option.
// Without one, as in a unicast probe, the answer goes to the frame's source.
func (m *message) solicited(destination netip.Addr, options []byte) frameResult {
	mac, result := linkLayerAddress(options, optionSource)
	switch {
	case result != answered:
		return result
	case m.sender.IsUnspecified() && mac != lb.MAC{}:
		return badOption
	case mac != lb.MAC{}:
		m.mac = mac
	}

	if m.sender.IsUnspecified() && destination != solicitedNode(m.target).addr {
		return badSender
	}

	return answered
}

// advertised takes the MAC that claims the target.
func (m *message) advertised(destination netip.Addr, icmp []byte) frameResult {
	if destination.IsMulticast() && m.isReply {
		return badFormat
	}

	mac, result := linkLayerAddress(icmp[discoveryLen:], optionTarget)
	if result == answered && mac != (lb.MAC{}) {
		m.mac = mac
	}

	return result
}

// linkLayerAddress returns the MAC in the option of this kind, zero without such an option.
func linkLayerAddress(options []byte, kind byte) (mac lb.MAC, result frameResult) {
	for len(options) > 0 {
		if len(options) < 8 {
			return mac, badOption
		}

		// The length is in units of 8 octets; 0 would loop for ever (RFC 4861 section 4.6).
		length := int(options[1]) * 8
		if length == 0 || length > len(options) {
			return mac, badOption
		}

		if options[0] == kind {
			mac = lb.MAC(options[2:8])
			if length != 8 || !mac.IsUnicast() {
				return mac, badOption
			}
		}

		options = options[length:]
	}

	return mac, answered
}

// checksum sums an ICMPv6 message with its pseudo header (RFC 8200 section 8.1). A sum of
// 0 means that the checksum in the message is right. addrs are source and destination.
func checksum(addrs, icmp []byte) uint16 {
	return sum(len(icmp)+unix.IPPROTO_ICMPV6, addrs, icmp)
}

// sum is the Internet checksum of parts and a number (RFC 1071).
func sum(start int, parts ...[]byte) uint16 {
	total := uint32(start)
	for _, b := range parts {
		for ; len(b) >= 2; b = b[2:] {
			total += uint32(b[0])<<8 | uint32(b[1])
		}

		if len(b) == 1 {
			total += uint32(b[0]) << 8
		}
	}

	for total > 0xffff {
		total = total>>16 + total&0xffff
	}

	return ^uint16(total)
}
