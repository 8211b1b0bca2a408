package heartbeat

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

// maxDatagram fits into any link's MTU.
const maxDatagram = rt.PrefixLen + maxBodyLen + rt.TagLen

// seal authenticates packets with one key. It is not safe for concurrent use.
type seal struct{ *rt.Seal }

func newSeal(key []byte) (*seal, error) {
	s, err := rt.NewSeal(key, "heartbeat")
	return &seal{s}, err
}

func newSeals(keys [][]byte) (seals []*seal, err error) {
	if len(keys) == 0 {
		return nil, errors.New("no key")
	}
	for _, k := range keys {
		if len(k) < 16 {
			return nil, fmt.Errorf("a key of %d octets is too short, want 16 at least", len(k))
		}
		s, err := newSeal(k)
		if err != nil {
			return nil, err
		}
		seals = append(seals, s)
	}
	return seals, nil
}

// close writes p as a datagram to b.
func (s *seal) close(b []byte, p *packet) []byte {
	return s.Close(p.append(binary.BigEndian.AppendUint64(b[:0], s.Prefix)))
}

// begins reports whether b has the prefix of what was closed with the same key.
func (s *seal) begins(b []byte) bool {
	return len(b) >= rt.PrefixLen && binary.BigEndian.Uint64(b) == s.Prefix
}

// open returns the body of a datagram that was closed with the same key.
func (s *seal) open(b []byte) (body []byte, ok bool) {
	if len(b) < rt.PrefixLen+headLen+rt.TagLen || !s.begins(b) {
		return nil, false
	}
	closed, ok := s.Open(b)
	if !ok {
		return nil, false
	}
	return closed[rt.PrefixLen:], true
}
