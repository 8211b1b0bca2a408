package layer2

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// message is the content of an ARP packet, a Neighbor Discovery message or an echo, alike for all.
type message struct {
	// target is the address in question; the zero Addr if the message asks nothing.
	target netip.Addr
	// sender is unspecified if the asker has no address yet: an ARP probe (RFC
	// 5227 section 2.1.1), or duplicate address detection (RFC 4862 section 5.4).
	sender netip.Addr
	// claimed is the address that the sender claims; the zero Addr for none.
	claimed netip.Addr
	// mac is the sender's MAC, to which an answer goes.
	mac lb.MAC
	// isUnicast reports whether the message was sent to this link only.
	isUnicast bool
	// isReply reports whether the message answers a question.
	isReply bool
	// nonce is the number of an echo, which its answer repeats; 0 for other messages.
	nonce uint64
	// isContest reports whether the echo is a contest: see lb.Question. A question has the asker's precedence, and
	// whether the asker still answers for the address.
	isContest    bool
	precedence   lb.Precedence
	askerAnswers bool
}

// isProbe reports whether the message only asks which machine has the target. A message to this
// link only asks whether this node has it: see Ask.
func (m message) isProbe() bool {
	return m.target.IsValid() && m.sender.IsUnspecified() && !m.isUnicast
}

// isQuestion reports whether the message asks which machine has the target, and is no announcement of it.
func (m message) isQuestion() bool {
	return m.target.IsValid() && m.target != m.claimed
}

// protocol has the differences between ARP, Neighbor Discovery and the echo.
type protocol struct {
	// index indexes arrays by protocol, and name is its metric label.
	index     int
	name      string
	etherType uint16
	// filter makes the program that passes only frames of this protocol about one of the addresses,
	// which are of its family. An echo may be about any address.
	filter func(addrs addressCover) []bpf.Instruction
	// parse reads a whole frame that arrived at the link with the MAC own. The result
	// of every valid frame is answered.
	parse func(frame []byte, own lb.MAC) (message, frameResult)
	// answer makes the frame that answers a question on the link: mac, usually the link's
	// own, has the target.
	answer func(l *lb.Interface, mac lb.MAC, m message) []byte
	// announce makes the frame that announces an address to one machine or, if that is nil, to all neighbours by one of
	// the protocol's forms in turn. The echo has no announce, request, probe or claims.
	announce func(l *lb.Interface, addr netip.Addr, turn int, to *machine) []byte
	// request makes the frame that asks a gateway for its own address, from this address.
	request func(l *lb.Interface, addr netip.Addr, to machine) []byte
	// probe makes the frame that asks whether any machine has an address.
	probe func(l *lb.Interface, addr netip.Addr) []byte
	// question makes the frame that asks one machine whether it has an address, or all machines if to is zero. It
	// returns nil if the link has no address to ask from, or no key is known.
	question func(l *lb.Interface, to lb.MAC, addr netip.Addr) []byte
	// answers is the program that passes replies to the frames of question.
	answers []bpf.Instruction
}

// Each family has one protocol; the echo of speakers has the index after them.
const (
	familyCount   = 2
	echoIndex     = familyCount
	protocolCount = familyCount + 1
)

// familyIndex returns the place of a family in arrays by family and by protocol.
func familyIndex(f lb.Family) int {
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

var broadcast = lb.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// ethernetHeader makes the header of a frame.
func ethernetHeader(dst, src lb.MAC, etherType uint16) []byte {
	return binary.BigEndian.AppendUint16(slices.Concat(dst[:], src[:]), etherType)
}

// header checks the Ethernet header of a frame that arrived at the link with the MAC own, and returns the payload. The
// result of a valid header is answered.
func header(frame []byte, want uint16, own lb.MAC) ([]byte, frameResult) {
	if len(frame) < ethernetLen {
		return nil, badLength
	}

	switch binary.BigEndian.Uint16(frame[offEtherType:]) {
	case want:
	case unix.ETH_P_8021Q, unix.ETH_P_8021AD:
		return nil, tagged
	default:
		return nil, notRequest
	}

	if lb.MAC(frame[offSource:offEtherType]) == own {
		return nil, ownFrame
	}

	destination := lb.MAC(frame[offDestination:offSource])
	if destination.IsUnicast() && destination != own {
		return nil, notToUs
	}

	return frame[ethernetLen:], answered
}

// receivedBy drops frames that another link received, and continues with the program. A packet socket also gets the
// frames of its link's VLANs: bond0 sees the ARP of bond0.100, and must neither answer it nor take it for a conflict.
func receivedBy(index int, program []bpf.Instruction) []bpf.Instruction {
	return slices.Concat([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtInterfaceIndex},
		skipIf(bpf.JumpEqual, uint32(index), 1),
		bpf.RetConstant{Val: 0},
	}, program)
}

// toUs drops frames that are not for this link, and continues with accept. A promiscuous
// link sees frames for other hosts. A frame of a VLAN without a link here reaches packet sockets
// without its tag: the kernel marks it as another host's.
func toUs(accept ...bpf.Instruction) []bpf.Instruction {
	return slices.Concat([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		skipIf(bpf.JumpEqual, unix.PACKET_OTHERHOST, 1),
		skipIf(bpf.JumpNotEqual, unix.PACKET_OUTGOING, 1),
		bpf.RetConstant{Val: 0},
	}, accept, []bpf.Instruction{bpf.RetConstant{Val: 0}})
}
