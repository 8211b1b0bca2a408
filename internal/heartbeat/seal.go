package heartbeat

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

// maxDatagram fits into any link's MTU.
const maxDatagram = rt.PrefixLen + maxBodyLen + rt.TagLen

// newSeals derives seals of heartbeats from keys.
func newSeals(keys [][]byte) ([]*rt.Seal, error) {
	if len(keys) == 0 {
		return nil, errors.New("no key")
	}
	for _, k := range keys {
		if len(k) < 16 {
			return nil, fmt.Errorf("a key of %d octets is too short, want 16 at least", len(k))
		}
	}
	return rt.NewSeals(keys, "heartbeat")
}

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
