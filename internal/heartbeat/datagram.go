package heartbeat

import (
	"encoding/binary"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// sealKind is the kind of packets that heartbeats are.
const sealKind = "heartbeat"

// maxDatagram fits into any link's MTU.
const maxDatagram = rt.PrefixLen + detect.MaxPacketLen + rt.TagLen

// closed writes p as a datagram to b.
func closed(s *rt.Seal, b []byte, p *detect.Packet) []byte {
	return s.Close(p.Append(binary.BigEndian.AppendUint64(b[:0], s.Prefix)))
}
