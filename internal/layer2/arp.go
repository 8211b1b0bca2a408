package layer2

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"golang.org/x/net/bpf"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// arpLen is an ARP packet for Ethernet and IPv4 (RFC 826).
const arpLen = 28

// maxFrame is more than any question is long; what is longer is cut and then
// fails its own length field.
const maxFrame = 1600

func arpProtocol() protocol {
	return protocol{
		family:    lb.IPv4,
		etherType: ethernet.EtherTypeARP,
		filter:    toUs(bpf.RetConstant{Val: maxFrame}),
		parse:     parseARP,
		answer:    arpReply,
		announce:  gratuitousARP,
	}
}

// parseARP reads an ARP request (RFC 826), a probe included.
func parseARP(frame []byte, own link.MAC) (question, outcome) {
	p, out := header(frame, ethernet.EtherTypeARP, own)
	if out != answered {
		return question{}, out
	}
	if len(p) < arpLen {
		return question{}, badLength
	}
	const (
		ethernetHardware = 1
		// Hardware type, protocol type and both address lengths, in one.
		ethernetIPv4 = ethernetHardware<<32 | uint64(ethernet.EtherTypeIPv4)<<16 | 6<<8 | 4
	)
	if uint64(binary.BigEndian.Uint32(p))<<16|uint64(binary.BigEndian.Uint16(p[4:])) != ethernetIPv4 {
		return question{}, badFormat
	}
	q := question{
		mac:    link.MAC(p[8:14]),
		sender: netip.AddrFrom4([4]byte(p[14:18])),
		target: netip.AddrFrom4([4]byte(p[24:28])),
	}
	if !q.mac.IsUnicast() || q.sender.IsMulticast() {
		return question{}, badSender
	}
	if arp.Operation(binary.BigEndian.Uint16(p[6:])) != arp.OperationRequest {
		return q, notRequest
	}
	return q, answered
}

// station is an end of an ARP packet.
type station struct {
	mac link.MAC
	ip  netip.Addr
}

// arpReply answers to the asker alone, also a probe, whose sender address
// 0.0.0.0 is given back as the target's (RFC 5227 section 2.1.1).
func arpReply(l *link.Link, q question) ([]byte, error) {
	return arpFrame(arp.OperationReply, station{l.MAC, q.target}, station{q.mac, q.sender}, q.mac.HardwareAddr())
}

// gratuitousARP is an announcement as a request (RFC 5227 section 2.3) and again
// as a reply, since some stacks learn from only one of them.
func gratuitousARP(l *link.Link, addr netip.Addr) ([][]byte, error) {
	us := station{l.MAC, addr}
	request, err := arpFrame(arp.OperationRequest, us, station{ip: addr}, ethernet.Broadcast)
	if err != nil {
		return nil, err
	}
	// In a gratuitous reply the target's MAC is the sender's (RFC 5944 section 4.6).
	reply, err := arpFrame(arp.OperationReply, us, us, ethernet.Broadcast)
	if err != nil {
		return nil, err
	}
	return [][]byte{request, reply}, nil
}

func arpFrame(op arp.Operation, sender, target station, dst net.HardwareAddr) ([]byte, error) {
	p, err := arp.NewPacket(op, sender.mac.HardwareAddr(), sender.ip, target.mac.HardwareAddr(), target.ip)
	if err != nil {
		return nil, fmt.Errorf("make ARP packet: %w", err)
	}
	payload, err := p.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("make ARP packet: %w", err)
	}
	f := ethernet.Frame{
		Destination: dst, Source: p.SenderHardwareAddr, EtherType: ethernet.EtherTypeARP, Payload: payload,
	}
	return f.MarshalBinary()
}
