package layer2

import (
	"net/netip"

	"github.com/mdlayher/ethernet"
	"golang.org/x/net/bpf"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// question asks for the MAC of an address; the same for both families.
type question struct {
	target netip.Addr
	// sender is unspecified when the asker has no address yet: an ARP probe (RFC
	// 5227 section 2.1.1), or duplicate address detection (RFC 4862 section 5.4).
	sender netip.Addr
	// mac is where the answer goes.
	mac link.MAC
}

// protocol is what differs between ARP and Neighbor Discovery.
type protocol struct {
	family    lb.Family
	etherType ethernet.EtherType
	// filter keeps out of the socket what is no business of the protocol.
	filter []bpf.Instruction
	// parse reads a whole frame that arrived at the link with this MAC. The
	// question is filled in as far as it was read.
	parse func(frame []byte, own link.MAC) (question, outcome)
	// answer makes the frame that answers q on the link.
	answer func(l *link.Link, q question) ([]byte, error)
	// announce makes the frames that tell all neighbours unasked.
	announce func(l *link.Link, addr netip.Addr) ([][]byte, error)
}

// protocols are both, in the order of family numbers.
func protocols() [families]protocol { return [families]protocol{arpProtocol(), ndpProtocol()} }

// families is how many there are.
const families = 2

// number indexes arrays by family.
func number(f lb.Family) int {
	if f == lb.IPv4 {
		return 0
	}
	return 1
}

// Offsets in an Ethernet frame (IEEE 802.3) and its header's length.
const (
	offDestination = 0
	offSource      = 6
	offEtherType   = 12
	ethernetLen    = 14
)

// header checks what all protocols have in common, and returns the payload.
func header(frame []byte, want ethernet.EtherType, own link.MAC) ([]byte, outcome) {
	if len(frame) < ethernetLen {
		return nil, badLength
	}
	switch et := ethernet.EtherType(uint16(frame[offEtherType])<<8 | uint16(frame[offEtherType+1])); et {
	case want:
	case ethernet.EtherTypeVLAN, ethernet.EtherTypeServiceVLAN:
		return nil, tagged
	default:
		return nil, notRequest
	}
	if link.MAC(frame[offSource:offEtherType]) == own {
		return nil, ownFrame
	}
	if dst := link.MAC(frame[offDestination:offSource]); dst.IsUnicast() && dst != own {
		return nil, notToUs
	}
	return frame[ethernetLen:], answered
}

// Packet types of linux/if_packet.h that mean: not sent to us.
const (
	packetOtherHost = 3
	packetOutgoing  = 4
)

// toUs lets frames pass that are for this link, and continues with accept. Those
// for others are seen on a promiscuous link; and of a VLAN that has no link here
// the kernel strips the tag, marks the frame as another host's, and shows it to
// packet sockets as if it had never been tagged.
func toUs(accept ...bpf.Instruction) []bpf.Instruction {
	n := uint8(len(accept))
	return append([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: packetOtherHost, SkipTrue: n + 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: packetOutgoing, SkipTrue: n},
	}, append(accept, bpf.RetConstant{Val: 0})...)
}
