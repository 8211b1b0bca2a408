package layer2

import (
	"net/netip"
	"slices"

	"github.com/mdlayher/ethernet"
	"golang.org/x/net/bpf"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// message is what an ARP packet or a message of Neighbor Discovery says; the same
// for both families.
type message struct {
	// target is asked for; the zero Addr asks nothing.
	target netip.Addr
	// sender is unspecified when the asker has no address yet: an ARP probe (RFC
	// 5227 section 2.1.1), or duplicate address detection (RFC 4862 section 5.4).
	sender netip.Addr
	// claimed is the address that the sender says it has; the zero Addr for none.
	claimed netip.Addr
	// mac is the sender's: where an answer goes, and who claims.
	mac link.MAC
	// direct: it was sent to us alone.
	direct bool
	// reply: it answers a question.
	reply bool
}

// isProbe reports whether the message only asks who has the target. One to us alone
// does not ask who, but whether we do: see Ask.
func (m message) isProbe() bool {
	return m.target.IsValid() && m.sender.IsUnspecified() && !m.direct
}

// protocol is what differs between ARP and Neighbor Discovery.
type protocol struct {
	family    lb.Family
	etherType ethernet.EtherType
	// filter keeps out of the socket what is no business of the protocol, and what
	// concerns none of the addresses, which are of its family and sorted.
	filter func(addrs []netip.Addr) []bpf.Instruction
	// parse reads a whole frame that arrived at the link with this MAC. The
	// outcome is answered for whatever is well-formed.
	parse func(frame []byte, own link.MAC) (message, outcome)
	// answer makes the frame that answers a question on the link: who has the
	// target is mac, mostly the link itself.
	answer func(l *link.Link, mac link.MAC, m message) ([]byte, error)
	// announce makes the frames that tell all neighbours unasked.
	announce func(l *link.Link, addr netip.Addr) ([][]byte, error)
	// probe makes the frame that asks whether anybody has an address.
	probe func(l *link.Link, addr netip.Addr) ([]byte, error)
	// question makes the frame that asks one machine alone whether it has an address, and
	// answers passes what such machines reply.
	question func(l *link.Link, to link.MAC, addr netip.Addr) ([]byte, error)
	answers  []bpf.Instruction
	// claims passes what announces an address.
	claims []bpf.Instruction
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
	return slices.Concat([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: packetOtherHost, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: packetOutgoing, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}, accept, []bpf.Instruction{bpf.RetConstant{Val: 0}})
}
