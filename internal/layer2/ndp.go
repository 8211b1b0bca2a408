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
	// discoveryLen is a Neighbor Solicitation or Advertisement without options (RFC
	// 4861 sections 4.3 and 4.4), and offTarget where both have the target.
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

func ndpProtocol() protocol {
	return protocol{
		number:    number(lb.IPv6),
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
func parseND(frame []byte, own lb.MAC) (message, outcome) {
	p, out := header(frame, unix.ETH_P_IPV6, own)
	if out != answered {
		return message{}, out
	}

	if len(p) < ipv6.HeaderLen {
		return message{}, badLength
	}

	if p[0]>>4 != 6 {
		return message{}, badFormat
	}

	if p[6] != unix.IPPROTO_ICMPV6 {
		return message{}, notRequest
	}

	// Ethernet's padding follows the payload.
	length := int(binary.BigEndian.Uint16(p[4:]))
	if length == 0 || length > len(p)-ipv6.HeaderLen {
		return message{}, badLength
	}

	icmp := p[ipv6.HeaderLen : ipv6.HeaderLen+length]
	kind := ipv6.ICMPType(icmp[0])
	switch {
	case kind != ipv6.ICMPTypeNeighborSolicitation && kind != ipv6.ICMPTypeNeighborAdvertisement:
		return message{}, notRequest
	case len(icmp) < discoveryLen:
		return message{}, badLength
	case p[7] != hopLimit:
		return message{}, badHopLimit
	case icmp[1] != 0:
		return message{}, badFormat
	case checksum(p[8:ipv6.HeaderLen], icmp) != 0:
		return message{}, badChecksum
	}

	m := message{
		mac:    lb.MAC(frame[offSource:offEtherType]),
		sender: netip.AddrFrom16([16]byte(p[8:24])),
		direct: lb.MAC(frame[offDestination:offSource]) == own,
	}

	target := netip.AddrFrom16([16]byte(icmp[offTarget:discoveryLen]))
	if target.IsMulticast() || target.IsUnspecified() {
		return message{}, badTarget
	}

	if m.sender.IsMulticast() || !m.mac.IsUnicast() {
		return message{}, badSender
	}

	destination := netip.AddrFrom16([16]byte(p[24:40]))
	if kind == ipv6.ICMPTypeNeighborAdvertisement {
		m.claimed = target
		m.reply = icmp[offFlags]&flagSolicited != 0
		return m, m.advertised(destination, icmp)
	}

	m.target = target
	if m.sender == target {
		m.claimed = target
	}

	return m, m.solicited(destination, icmp[discoveryLen:])
}

// solicited takes the asker's MAC from its Source Link-Layer Address option.
// Without one, as in a unicast probe, the answer goes to the frame's source.
func (m *message) solicited(destination netip.Addr, options []byte) outcome {
	mac, out := linkLayerAddress(options, optionSource)
	switch {
	case out != answered:
		return out
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
func (m *message) advertised(destination netip.Addr, icmp []byte) outcome {
	if destination.IsMulticast() && m.reply {
		return badFormat
	}

	mac, out := linkLayerAddress(icmp[discoveryLen:], optionTarget)
	if out == answered && mac != (lb.MAC{}) {
		m.mac = mac
	}

	return out
}

// linkLayerAddress returns the MAC in the option of this kind, zero without one.
func linkLayerAddress(options []byte, kind byte) (mac lb.MAC, out outcome) {
	for len(options) > 0 {
		// The length is in units of 8 octets; 0 would loop for ever (RFC 4861 section 4.6).
		if len(options) < 8 || options[1] == 0 || int(options[1])*8 > len(options) {
			return mac, badOption
		}

		if options[0] == kind {
			mac = lb.MAC(options[2:8])
			if options[1] != 1 || !mac.IsUnicast() {
				return mac, badOption
			}
		}

		options = options[int(options[1])*8:]
	}

	return mac, answered
}

// checksum sums an ICMPv6 message with its pseudo header (RFC 8200 section 8.1);
// 0 means that the checksum in it is right. addrs are source and destination.
func checksum(addrs, icmp []byte) uint16 { return sum(len(icmp)+unix.IPPROTO_ICMPV6, addrs, icmp) }

// sum is the Internet checksum of parts and a number (RFC 1071).
func sum(start int, parts ...[]byte) uint16 {
	sum := uint32(start)
	for _, b := range parts {
		for ; len(b) >= 2; b = b[2:] {
			sum += uint32(b[0])<<8 | uint32(b[1])
		}

		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}

	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}

	return ^uint16(sum)
}
