// Package whohas requests the MACs of addresses on a link, by ARP and NDP, repeatedly, and
// reports all claims of them. Unlike a kernel it reports every answer, so that it detects
// two nodes that answer for one address, and every gratuitous ARP and unsolicited NA.
package whohas

import (
	"encoding/binary"
	"net"
	"net/netip"
	"time"
)

// Claim is one frame in which a machine claims an address.
type Claim struct {
	At      time.Time  `json:"at"`
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`
}

const (
	typeARP  = 0x0806
	typeIPv6 = 0x86dd

	etherLength = 14
	arpLength   = 28
	ipv6Length  = 40
	icmpv6      = 58
	// RFC 4861 sections 4.3 and 4.4.
	solicitation, advertisement = 135, 136
	sourceLinkLayer, targetLink = 1, 2
)

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func ether(to, from net.HardwareAddr, kind uint16) []byte {
	b := append(append(make([]byte, 0, 128), to...), from...)
	return binary.BigEndian.AppendUint16(b, kind)
}

// question returns the frame that asks for an address: an ARP request (RFC 826), or
// a neighbor solicitation to the solicited-node address.
func question(mac net.HardwareAddr, own, target netip.Addr) []byte {
	if target.Is4() {
		b := ether(broadcast, mac, typeARP)
		b = append(b, 0, 1, 8, 0, 6, 4, 0, 1) // Ethernet, IPv4, their lengths, request
		b = append(append(b, mac...), own.AsSlice()...)
		return append(append(b, make([]byte, 6)...), target.AsSlice()...)
	}
	t := target.As16()
	group := netip.AddrFrom16([16]byte{0xff, 0x02, 11: 1, 12: 0xff, t[13], t[14], t[15]})
	body := append([]byte{solicitation, 0, 0, 0, 0, 0, 0, 0}, t[:]...)
	body = append(append(body, sourceLinkLayer, 1), mac...)
	binary.BigEndian.PutUint16(body[2:], checksum(own, group, body))
	b := ether(net.HardwareAddr{0x33, 0x33, 0xff, t[13], t[14], t[15]}, mac, typeIPv6)
	b = append(b, 0x60, 0, 0, 0, 0, byte(len(body)), icmpv6, 255)
	b = append(append(b, own.AsSlice()...), group.AsSlice()...)
	return append(b, body...)
}

// checksum of ICMPv6, with the pseudo-header of RFC 8200 section 8.1.
func checksum(from, to netip.Addr, body []byte) uint16 {
	b := append(from.AsSlice(), to.AsSlice()...)
	b = append(b, 0, 0, 0, byte(len(body)), 0, 0, 0, icmpv6)
	b = append(b, body...)
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// read returns the address that a frame claims, and the MAC that claims it.
func read(frame []byte) (netip.Addr, net.HardwareAddr, bool) {
	if len(frame) < etherLength {
		return netip.Addr{}, nil, false
	}
	body := frame[etherLength:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case typeARP:
		if len(body) < arpLength || binary.BigEndian.Uint16(body[2:]) != 0x0800 {
			return netip.Addr{}, nil, false
		}
		return netip.AddrFrom4([4]byte(body[14:18])), body[8:14], true
	case typeIPv6:
		return readAdvertisement(frame[6:12], body)
	}
	return netip.Addr{}, nil, false
}

func readAdvertisement(source net.HardwareAddr, packet []byte) (netip.Addr, net.HardwareAddr, bool) {
	if len(packet) < ipv6Length+24 || packet[6] != icmpv6 || packet[ipv6Length] != advertisement {
		return netip.Addr{}, nil, false
	}
	body := packet[ipv6Length:]
	address := netip.AddrFrom16([16]byte(body[8:24]))
	for options := body[24:]; len(options) >= 8; {
		length := int(options[1]) * 8
		if length == 0 || length > len(options) {
			break
		}
		if options[0] == targetLink {
			return address, options[2:8], true
		}
		options = options[length:]
	}
	return address, source, true
}
