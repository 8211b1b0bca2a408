package heartbeat

import (
	"encoding/binary"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// A frame is a packet between two interfaces on one link. It does not depend on addresses, prefixes and IP firewalls.
// Its tag authenticates all octets before it. These name both interfaces by MAC and index: a frame that is recorded on
// one VLAN of an interface is not accepted on another one. A hello is a frame to all speakers on the link, with no
// packet for any.
const (
	// etherType is also the EtherType of layer2's echoes: Local Experimental EtherType 1 (IEEE 802). frameVersion
	// stands where an echo has its own version, so that each of the two filters drops the frames of the other.
	etherType     = unix.ETH_P_802_EX1
	bigEndianType = etherType<<8&0xff00 | etherType>>8
	frameVersion  = 2
	// frameSealKind is the kind of packets that frames are, for keys.
	frameSealKind = "link"
)

// Offsets in a frame.
const (
	offSource    = 6
	offEtherType = 12
	offPrefix    = 14
	offVersion   = offPrefix + rt.PrefixLen
	offFrom      = offVersion + 1
	offTo        = offFrom + 4
	offPacket    = offTo + 4

	minFrame = offPacket + rt.TagLen
	// maxFrame fits into the MTU of any link.
	maxFrame = minFrame + detect.MaxPacketLen
)

// macAddress is the Ethernet address of an interface.
type macAddress = [6]byte

// helloGroup is the locally administered group address that hellos go to.
var helloGroup = macAddress{0x03, 0x00, 'H', 'F', 0x00, 0x01}

// linkEnd is an interface at one end of a link.
type linkEnd struct {
	mac   macAddress
	index uint32
}

// byteOrder is the network's.
var byteOrder = binary.BigEndian

// everyEnd is where hellos go.
var everyEnd = linkEnd{mac: helloGroup}

// sealFrame writes a packet as a frame to b.
func sealFrame(s *rt.Seal, b []byte, from, to linkEnd, p *detect.Packet) []byte {
	b = append(b[:0], to.mac[:]...)
	b = append(b, from.mac[:]...)
	b = byteOrder.AppendUint16(b, etherType)
	b = byteOrder.AppendUint64(b, s.Prefix)
	b = append(b, frameVersion)
	b = byteOrder.AppendUint32(b, from.index)
	b = byteOrder.AppendUint32(b, to.index)
	b = p.Append(b)

	return s.Close(b)
}

// openedFrame is an authentic frame.
type openedFrame struct {
	from, to linkEnd
	packet   detect.Packet
}

// openFrame returns what is in a frame. It reports false if the frame is not authentic. The packet's claims are in the
// memory of claims.
func openFrame(seals []*rt.Seal, frame []byte, claims []detect.NodeClaim) (f openedFrame, ok bool) {
	if len(frame) < minFrame {
		return f, false
	}
	b, ok := rt.Open(seals, frame, offPrefix)
	if !ok {
		return f, false
	}
	kind := byteOrder.Uint16(b[offEtherType:])
	if kind != etherType || b[offVersion] != frameVersion {
		return f, false
	}

	f.to.mac = macAddress(b)
	f.from.mac = macAddress(b[offSource:])
	f.from.index = byteOrder.Uint32(b[offFrom:])
	f.to.index = byteOrder.Uint32(b[offTo:])
	packet := b[offPacket:]
	f.packet, ok = detect.ParsePacket(packet, claims)

	return f, ok
}

// isHello reports whether the frame is a hello.
func (f *openedFrame) isHello() bool { return f.to == everyEnd && f.packet.To == 0 }

// isFor reports whether the frame has a packet for an interface, and not for all.
func (f *openedFrame) isFor(own linkEnd) bool { return f.to == own && f.packet.To != 0 }

// frameFilter returns a socket filter that passes frames with the prefix of one of the seals.
func frameFilter(seals []*rt.Seal) []bpf.Instruction {
	program := []bpf.Instruction{
		load(offVersion, 1),
		skipIfNot(frameVersion, 1),
	}
	program = append(program, bpf.Jump{Skip: 1}, dropPacket)

	return append(program, prefixFilter(seals, offPrefix)...)
}

// openFrameSocket opens a packet socket on a link. It drops all frames until it gets a filter.
func openFrameSocket(l Link) (fd int, err error) {
	// Protocol 0 receives nothing (packet(7)) until the socket is bound.
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}

	err = bindFrames(fd, l)
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}

	return fd, nil
}

// bindFrames binds a packet socket to the frames of a link, which the kernel dates.
func bindFrames(fd int, l Link) error {
	err := rt.Attach(fd, unix.SO_ATTACH_FILTER, []bpf.Instruction{dropPacket})
	if err != nil {
		return err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	if err != nil {
		return err
	}

	group := unix.PacketMreq{
		Ifindex: int32(l.Index),
		Type:    unix.PACKET_MR_MULTICAST,
		Alen:    uint16(len(helloGroup)),
	}
	copy(group.Address[:], helloGroup[:])
	err = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &group)
	if err != nil {
		return err
	}

	// With NET_ADMIN the buffer may be larger than the system's limit.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	address := &unix.SockaddrLinklayer{
		Protocol: bigEndianType,
		Ifindex:  l.Index,
	}

	return unix.Bind(fd, address)
}
