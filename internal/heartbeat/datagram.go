package heartbeat

import (
	"encoding/binary"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// sealKind is the kind of packets that heartbeats are, for keys.
const sealKind = "heartbeat"

const (
	// maxDatagram fits into the MTU of any link.
	maxDatagram = rt.PrefixLen + detect.MaxPacketLen + rt.TagLen
	// maxPacket is the length of the longest datagram or frame.
	maxPacket = max(maxDatagram, maxFrame)
)

// sealPacket writes a packet as a datagram to b.
func sealPacket(s *rt.Seal, b []byte, p *detect.Packet) []byte {
	return s.Close(p.Append(binary.BigEndian.AppendUint64(b[:0], s.Prefix)))
}
