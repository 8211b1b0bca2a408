package heartbeat

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
)

const (
	prefixLen = 8
	macLen    = 16
	// maxDatagram fits into any link's MTU.
	maxDatagram = prefixLen + maxBodyLen + macLen
)

// seal authenticates packets with one key. It is not safe for concurrent use.
type seal struct {
	// prefix begins every packet. A comparison is enough to drop a packet of a sender without the key.
	prefix uint64
	mac    hash.Hash
	sum    [sha256.Size]byte
}

// newSeal derives keys of its own, so that no key serves two algorithms: the
// membership encrypts with the same one.
func newSeal(key []byte) (*seal, error) {
	derived, err := hkdf.Key(sha256.New, key, nil, "holdfast heartbeat", prefixLen+sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("derive key: %w", err)
	}
	return &seal{
		prefix: binary.BigEndian.Uint64(derived),
		mac:    hmac.New(sha256.New, derived[prefixLen:]),
	}, nil
}

// close appends p as a datagram to b.
func (s *seal) close(b []byte, p *packet) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint64(b, s.prefix)
	b = p.append(b)
	return append(b, s.tag(b[start:])...)
}

// begins reports whether b has the prefix of what was closed with the same key.
func (s *seal) begins(b []byte) bool {
	return len(b) >= prefixLen && binary.BigEndian.Uint64(b) == s.prefix
}

// open returns the body of a datagram that was closed with the same key.
func (s *seal) open(b []byte) (body []byte, ok bool) {
	if len(b) < prefixLen+headLen+macLen || !s.begins(b) {
		return nil, false
	}
	end := len(b) - macLen
	if !hmac.Equal(s.tag(b[:end]), b[end:]) {
		return nil, false
	}
	return b[prefixLen:end], true
}

// tag is valid until the next call.
func (s *seal) tag(b []byte) []byte {
	s.mac.Reset()
	s.mac.Write(b)
	return s.mac.Sum(s.sum[:0])[:macLen]
}
