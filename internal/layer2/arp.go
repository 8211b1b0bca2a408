package layer2

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// arpLen is an ARP packet for Ethernet and IPv4 (RFC 826).
const arpLen = 28

// maxFrame exceeds the length of every question. Longer frames are truncated, and then
// contradict their own length field.
const maxFrame = 1600

func arpProtocol() protocol {
	return protocol{
		number:    number(lb.IPv4),
		name:      string(lb.IPv4),
		etherType: ethernet.EtherTypeARP,
		filter:    arpFilter,
		parse:     parseARP,
		answer:    arpReply,
		announce:  gratuitousARP,
		request:   arpRequestFrom,
		probe:     arpProbe,
		question:  arpQuestion,
		answers:   arpAnswers(),
	}
}

// Offsets in an ARP packet of the operation and of the two protocol addresses.
const (
	offOperation = 6
	offSenderIP  = 14
	offTargetIP  = 24
)

// parseARP reads an ARP packet (RFC 826). Every packet claims the sender address
// for its sender (RFC 5227 section 2.4), unless the sender has none yet.
func parseARP(frame []byte, own lb.MAC) (message, outcome) {
	p, out := header(frame, ethernet.EtherTypeARP, own)
	if out != answered {
		return message{}, out
	}
	if len(p) < arpLen {
		return message{}, badLength
	}
	const (
		ethernetHardware = 1
		// Hardware type, protocol type and both address lengths at once.
		ethernetIPv4 = ethernetHardware<<32 | uint64(ethernet.EtherTypeIPv4)<<16 | 6<<8 | 4
	)
	if uint64(binary.BigEndian.Uint32(p))<<16|uint64(binary.BigEndian.Uint16(p[4:])) != ethernetIPv4 {
		return message{}, badFormat
	}
	m := message{
		mac: lb.MAC(p[8:offSenderIP]), sender: netip.AddrFrom4([4]byte(p[offSenderIP:18])),
		direct: lb.MAC(frame[offDestination:offSource]) == own,
	}
	if !m.mac.IsUnicast() || m.sender.IsMulticast() {
		return message{}, badSender
	}
	if !m.sender.IsUnspecified() {
		m.claimed = m.sender
	}
	switch arp.Operation(binary.BigEndian.Uint16(p[offOperation:])) {
	case arp.OperationRequest:
		m.target = netip.AddrFrom4([4]byte(p[offTargetIP:arpLen]))
	case arp.OperationReply:
		m.reply = true
	default:
		return message{}, notRequest
	}
	return m, answered
}

// station is one end of an ARP packet.
type station struct {
	mac lb.MAC
	ip  netip.Addr
}

// arpReply answers the asker only. In the answer to a probe the target address is
// the probe's sender address 0.0.0.0 (RFC 5227 section 2.1.1).
func arpReply(l *lb.Interface, mac lb.MAC, m message) ([]byte, error) {
	return arpFrame(l, arp.OperationReply, station{mac, m.target}, station{m.mac, m.sender}, m.mac.HardwareAddr())
}

// arpProbe asks without changing any ARP cache (RFC 5227 section 2.1.1).
func arpProbe(l *lb.Interface, addr netip.Addr) ([]byte, error) {
	unspecified := station{l.MAC, netip.IPv4Unspecified()}
	return arpFrame(l, arp.OperationRequest, unspecified, station{ip: addr}, ethernet.Broadcast)
}

// arpQuestion asks one machine only (RFC 1122 section 2.3.2.1, Unicast Poll). The sender
// is an address of this link in the same subnet, which the machine may learn or confirm,
// as with any request. Without such an address it asks like a probe, which changes no
// cache and is answered too (RFC 5227 section 2.1.1).
func arpQuestion(l *lb.Interface, to lb.MAC, addr netip.Addr) ([]byte, error) {
	us := station{l.MAC, netip.IPv4Unspecified()}
	for _, p := range l.Prefixes {
		if p.Contains(addr) && p.Addr() != addr {
			us.ip = p.Addr()
			break
		}
	}
	return arpFrame(l, arp.OperationRequest, us, station{ip: addr}, to.HardwareAddr())
}

// gratuitousARP announces by a request (RFC 5227 section 2.3) or by a reply: some stacks learn from only one of them. One
// machine gets a reply.
func gratuitousARP(l *lb.Interface, addr netip.Addr, turn int, to *machine) ([]byte, error) {
	us := station{l.MAC, addr}
	switch {
	case to != nil:
		return arpFrame(l, arp.OperationReply, us, us, to.mac.HardwareAddr())
	case turn%2 == 0:
		return arpFrame(l, arp.OperationRequest, us, station{ip: addr}, ethernet.Broadcast)
	}
	// In a gratuitous reply the target's MAC is the sender's (RFC 5944 section 4.6).
	return arpFrame(l, arp.OperationReply, us, us, ethernet.Broadcast)
}

// arpRequestFrom asks a machine for its own address, which every stack learns the sender from (RFC 826).
func arpRequestFrom(l *lb.Interface, addr netip.Addr, to machine) ([]byte, error) {
	return arpFrame(l, arp.OperationRequest, station{l.MAC, addr}, station{ip: to.addr}, to.mac.HardwareAddr())
}

func arpFrame(l *lb.Interface, op arp.Operation, sender, target station, dst net.HardwareAddr) ([]byte, error) {
	p, err := arp.NewPacket(op, sender.mac.HardwareAddr(), sender.ip, target.mac.HardwareAddr(), target.ip)
	if err != nil {
		return nil, fmt.Errorf("make ARP packet: %w", err)
	}
	payload, err := p.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("make ARP packet: %w", err)
	}
	f := ethernet.Frame{
		Destination: dst, Source: l.MAC.HardwareAddr(), EtherType: ethernet.EtherTypeARP, Payload: payload,
	}
	return f.MarshalBinary()
}
