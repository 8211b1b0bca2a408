package heartbeat

import (
	"encoding/binary"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

// sealKind is the kind of packets that heartbeats are.
const sealKind = "heartbeat"

// maxDatagram fits into any link's MTU.
const maxDatagram = rt.PrefixLen + maxBodyLen + rt.TagLen

// closed writes p as a datagram to b.
func closed(s *rt.Seal, b []byte, p *packet) []byte {
	return s.Close(p.append(binary.BigEndian.AppendUint64(b[:0], s.Prefix)))
}

// opened returns the body of a datagram that was closed with the same key.
func opened(s *rt.Seal, b []byte) (body []byte, ok bool) {
	if len(b) < rt.PrefixLen+headLen+rt.TagLen || !s.Begins(b) {
		return nil, false
	}
	closed, ok := s.Open(b)
	if !ok {
		return nil, false
	}
	return closed[rt.PrefixLen:], true
}
