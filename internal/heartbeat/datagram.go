package heartbeat

import (
	"encoding/binary"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// sealKind is the kind of packets that heartbeats are, for keys.
const sealKind = "heartbeat"

// maxDatagram fits into the MTU of any link.
const maxDatagram = rt.PrefixLen + detect.MaxPacketLen + rt.TagLen

// sealPacket writes a packet as a datagram to b.
func sealPacket(s *rt.Seal, b []byte, p *detect.Packet) []byte {
	return s.Close(p.Append(binary.BigEndian.AppendUint64(b[:0], s.Prefix)))
}
