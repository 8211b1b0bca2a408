package layer2

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/ndp"
	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv6"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

const (
	// hopLimit proves that no router forwarded the packet (RFC 4861 section 3.1).
	hopLimit = 255
	// protocolICMPv6 is the Next Header value (RFC 4443 section 1).
	protocolICMPv6 = 58
	// ipv6Len is the IPv6 header (RFC 8200 section 3).
	ipv6Len = 40
	// solicitationLen is a Neighbor Solicitation without options (RFC 4861 section 4.3).
	solicitationLen = 24
)

func ndpProtocol() protocol {
	return protocol{
		family:    lb.IPv6,
		etherType: ethernet.EtherTypeIPv6,
		filter:    solicitations(),
		parse:     parseNS,
		answer:    neighborAdvertisement,
		announce:  unsolicitedNA,
	}
}

// solicitations lets Neighbor Solicitations pass. They bear no extension header
// in practice, and what hides one behind a Fragment header must be dropped
// anyway (RFC 6980 section 5).
func solicitations() []bpf.Instruction {
	return toUs(
		bpf.LoadAbsolute{Off: ethernetLen + 6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protocolICMPv6, SkipTrue: 3},
		bpf.LoadAbsolute{Off: ethernetLen + ipv6Len, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(ipv6.ICMPTypeNeighborSolicitation), SkipTrue: 1},
		bpf.RetConstant{Val: maxFrame},
	)
}

// parseNS reads a Neighbor Solicitation and validates it as RFC 4861 section 7.1.1 demands.
func parseNS(frame []byte, own link.MAC) (question, outcome) {
	p, out := header(frame, ethernet.EtherTypeIPv6, own)
	if out != answered {
		return question{}, out
	}
	if len(p) < ipv6Len {
		return question{}, badLength
	}
	if p[0]>>4 != 6 {
		return question{}, badFormat
	}
	if p[6] != protocolICMPv6 {
		return question{}, notRequest
	}
	// What follows the payload is Ethernet's padding.
	length := int(binary.BigEndian.Uint16(p[4:]))
	if length == 0 || length > len(p)-ipv6Len {
		return question{}, badLength
	}
	icmp := p[ipv6Len : ipv6Len+length]
	switch {
	case icmp[0] != byte(ipv6.ICMPTypeNeighborSolicitation):
		return question{}, notRequest
	case len(icmp) < solicitationLen:
		return question{}, badLength
	case p[7] != hopLimit:
		return question{}, badHopLimit
	case icmp[1] != 0:
		return question{}, badFormat
	case checksum(p[8:ipv6Len], icmp) != 0:
		return question{}, badChecksum
	}
	q := question{
		mac:    link.MAC(frame[offSource:offEtherType]),
		sender: netip.AddrFrom16([16]byte(p[8:24])),
		target: netip.AddrFrom16([16]byte(icmp[8:24])),
	}
	return q, validate(&q, netip.AddrFrom16([16]byte(p[24:40])), icmp[solicitationLen:])
}

// validate checks addresses and options, and takes the asker's MAC from its
// Source Link-Layer Address option. Without one, as in a probe by unicast, the
// frame's source it came from is the one to answer.
func validate(q *question, destination netip.Addr, options []byte) outcome {
	if q.target.IsMulticast() || q.target.IsUnspecified() {
		return badTarget
	}
	if q.sender.IsMulticast() || !q.mac.IsUnicast() {
		return badSender
	}
	for len(options) > 0 {
		// The length counts units of 8 octets; 0 would never end (RFC 4861 section 4.6).
		if len(options) < 8 || options[1] == 0 || int(options[1])*8 > len(options) {
			return badOption
		}
		if options[0] == byte(ndp.Source) {
			mac := link.MAC(options[2:8])
			if q.sender.IsUnspecified() || options[1] != 1 || !mac.IsUnicast() {
				return badOption
			}
			q.mac = mac
		}
		options = options[int(options[1])*8:]
	}
	if q.sender.IsUnspecified() {
		if group, err := ndp.SolicitedNodeMulticast(q.target); err != nil || destination != group {
			return badSender
		}
	}
	return answered
}

// checksum sums an ICMPv6 message with its pseudo header (RFC 8200 section 8.1);
// 0 means that the checksum in it is right. addrs are source and destination.
func checksum(addrs, icmp []byte) uint16 {
	sum := uint32(len(icmp)) + protocolICMPv6
	for _, b := range [][]byte{addrs, icmp} {
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

// neighborAdvertisement answers to the asker; one that has no address yet is
// answered to all nodes, unsolicited (RFC 4861 section 7.2.4).
func neighborAdvertisement(l *link.Link, q question) ([]byte, error) {
	if q.sender.IsUnspecified() {
		return naFrame(l, q.target, netip.IPv6LinkLocalAllNodes(), false, groupMAC(netip.IPv6LinkLocalAllNodes()))
	}
	return naFrame(l, q.target, q.sender, true, q.mac)
}

// unsolicitedNA tells all nodes on the link (RFC 4861 section 7.2.6).
func unsolicitedNA(l *link.Link, addr netip.Addr) ([][]byte, error) {
	all := netip.IPv6LinkLocalAllNodes()
	frame, err := naFrame(l, addr, all, false, groupMAC(all))
	if err != nil {
		return nil, err
	}
	return [][]byte{frame}, nil
}

func naFrame(l *link.Link, target, to netip.Addr, solicited bool, dst link.MAC) ([]byte, error) {
	source := l.LinkLocal()
	if !source.IsValid() {
		source = target
	}
	message, err := ndp.MarshalMessageChecksum(&ndp.NeighborAdvertisement{
		Solicited: solicited,
		// The address moves between nodes: what a neighbour has cached is to be replaced.
		Override:      true,
		TargetAddress: target,
		Options:       []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: l.MAC.HardwareAddr()}},
	}, source, to)
	if err != nil {
		return nil, fmt.Errorf("make neighbor advertisement: %w", err)
	}
	packet := make([]byte, ipv6Len, ipv6Len+len(message))
	packet[0] = 6 << 4
	binary.BigEndian.PutUint16(packet[4:], uint16(len(message)))
	packet[6] = protocolICMPv6
	packet[7] = hopLimit
	copy(packet[8:], source.AsSlice())
	copy(packet[24:], to.AsSlice())
	f := ethernet.Frame{
		Destination: dst.HardwareAddr(), Source: l.MAC.HardwareAddr(),
		EtherType: ethernet.EtherTypeIPv6, Payload: append(packet, message...),
	}
	return f.MarshalBinary()
}

// groupMAC is the Ethernet address of an IPv6 group (RFC 2464 section 7).
func groupMAC(group netip.Addr) link.MAC {
	a := group.As16()
	return link.MAC{0x33, 0x33, a[12], a[13], a[14], a[15]}
}
