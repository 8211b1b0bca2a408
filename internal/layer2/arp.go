package layer2

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// arpLen is an ARP packet for Ethernet and IPv4 (RFC 826).
const arpLen = 28

// maxFrame exceeds the length of every question. Longer frames are truncated, and contradict
// their own length field then.
const maxFrame = 1600

// arpProtocol returns the protocol of IPv4.
func arpProtocol() protocol {
	return protocol{
		index:     familyIndex(lb.IPv4),
		name:      string(lb.IPv4),
		etherType: unix.ETH_P_ARP,
		filter:    arpFilter,
		parse:     parseARP,
		answer:    arpReply,
		announce:  gratuitousARP,
		request:   arpRequestFrom,
		probe:     arpProbe,
		question:  arpQuestion,
		answers:   toUs(passUnicast()...),
	}
}

// Offsets in an ARP packet of the operation and of the two protocol addresses.
const (
	offOperation = 6
	offSenderIP  = 14
	offTargetIP  = 24
)

// ethernetIPv4 are hardware type, protocol type and both address lengths of ARP for Ethernet and IPv4.
var ethernetIPv4 = []byte{0, unix.ARPHRD_ETHER, unix.ETH_P_IP >> 8, 0, 6, 4}

// Operations of ARP.
const (
	operationRequest = 1
	operationReply   = 2
)

// parseARP reads an ARP packet (RFC 826). Every packet claims the sender address
// for its sender (RFC 5227 section 2.4), unless the sender has none yet.
func parseARP(frame []byte, own lb.MAC) (message, frameResult) {
	p, result := header(frame, unix.ETH_P_ARP, own)
	if result != answered {
		return message{}, result
	}

	if len(p) < arpLen {
		return message{}, badLength
	}

	if !bytes.HasPrefix(p, ethernetIPv4) {
		return message{}, badFormat
	}

	m := message{
		mac:       lb.MAC(p[8:offSenderIP]),
		sender:    netip.AddrFrom4([4]byte(p[offSenderIP:18])),
		isUnicast: lb.MAC(frame[offDestination:offSource]) == own,
	}
	if !m.mac.IsUnicast() || m.sender.IsMulticast() {
		return message{}, badSender
	}

	if !m.sender.IsUnspecified() {
		m.claimed = m.sender
	}

	switch binary.BigEndian.Uint16(p[offOperation:]) {
	case operationRequest:
		m.target = netip.AddrFrom4([4]byte(p[offTargetIP:arpLen]))
	case operationReply:
		m.isReply = true
	default:
		return message{}, notRequest
	}

	return m, answered
}

// arpReply answers the asker only. In the answer to a probe the target address is
// the probe's sender address 0.0.0.0 (RFC 5227 section 2.1.1).
func arpReply(l *lb.Interface, mac lb.MAC, m message) []byte {
	sender := machine{addr: m.target, mac: mac}
	asker := machine{addr: m.sender, mac: m.mac}
	return arpFrame(l, operationReply, sender, asker, m.mac)
}

// arpProbe asks without changing any ARP cache (RFC 5227 section 2.1.1).
func arpProbe(l *lb.Interface, addr netip.Addr) []byte {
	return arpFrame(
		l,
		operationRequest,
		machine{addr: netip.IPv4Unspecified(), mac: l.MAC},
		machine{addr: addr},
		broadcast,
	)
}

// arpQuestion asks one machine only (RFC 1122 section 2.3.2.1, Unicast Poll), or all. The sender
// is an address of this link in the same subnet, which the machine may learn or confirm,
// as with any request. Without such an address it asks like a probe, which changes no
// cache and is answered too (RFC 5227 section 2.1.1).
func arpQuestion(l *lb.Interface, to lb.MAC, addr netip.Addr) []byte {
	sender := machine{addr: netip.IPv4Unspecified(), mac: l.MAC}
	for _, p := range l.Prefixes {
		if p.Contains(addr) && p.Addr() != addr {
			sender.addr = p.Addr()
			break
		}
	}

	return arpFrame(l, operationRequest, sender, machine{addr: addr}, cmp.Or(to, broadcast))
}

// gratuitousARP announces by a request (RFC 5227 section 2.3) or by a reply: some stacks learn from only one of them.
// One machine gets a reply.
func gratuitousARP(l *lb.Interface, addr netip.Addr, turn int, to *machine) []byte {
	sender := machine{addr: addr, mac: l.MAC}
	// In a gratuitous reply the target's MAC is the sender's (RFC 5944 section 4.6).
	if to != nil {
		return arpFrame(l, operationReply, sender, sender, to.mac)
	}

	isRequestTurn := turn%2 == 0
	if isRequestTurn {
		return arpFrame(l, operationRequest, sender, machine{addr: addr}, broadcast)
	}

	return arpFrame(l, operationReply, sender, sender, broadcast)
}

// arpRequestFrom asks a machine for its own address: every stack learns the sender from that (RFC 826).
func arpRequestFrom(l *lb.Interface, addr netip.Addr, to machine) []byte {
	sender := machine{addr: addr, mac: l.MAC}
	target := machine{addr: to.addr}
	return arpFrame(l, operationRequest, sender, target, to.mac)
}

// arpFrame makes a frame with an ARP packet. Its source is the link's MAC, which may differ from the sender's.
func arpFrame(l *lb.Interface, op byte, sender, target machine, dst lb.MAC) []byte {
	senderIP := sender.addr.As4()
	targetIP := target.addr.As4()
	return slices.Concat(
		ethernetHeader(dst, l.MAC, unix.ETH_P_ARP),
		ethernetIPv4,
		[]byte{0, op},
		sender.mac[:],
		senderIP[:],
		target.mac[:],
		targetIP[:],
	)
}
