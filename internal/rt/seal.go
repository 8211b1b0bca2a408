package rt

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
)

// PrefixLen and TagLen are how many octets prefix and tag of a packet take.
const (
	PrefixLen = 8
	TagLen    = 16
)

// Seal authenticates packets of one kind with one key. It is not safe for concurrent use.
type Seal struct {
	// Prefix is in every packet. A comparison is enough to drop a packet of a sender without the key.
	Prefix uint64
	mac    hash.Hash
	sum    [sha256.Size]byte
}

// NewSeals derives keys for a kind of packets, so that no key serves two: the membership encrypts with the same ones.
func NewSeals(keys [][]byte, kind string) (seals []*Seal) {
	for _, k := range keys {
		derived, err := hkdf.Key(sha256.New, k, nil, "holdfast "+kind, PrefixLen+sha256.Size)
		if err != nil {
			panic(fmt.Sprintf("derive a key: %v", err)) // only a longer one than HKDF makes fails
		}
		seals = append(
			seals,
			&Seal{Prefix: binary.BigEndian.Uint64(derived), mac: hmac.New(sha256.New, derived[PrefixLen:])},
		)
	}
	return seals
}

// Begins reports whether b has the prefix of what was closed with the same key.
func (s *Seal) Begins(b []byte) bool {
	return len(b) >= PrefixLen && binary.BigEndian.Uint64(b) == s.Prefix
}

// Close appends the tag.
func (s *Seal) Close(b []byte) []byte { return append(b, s.tag(b)...) }

// Open returns what was closed with the key of one of the seals. Its prefix is at an offset.
func Open(seals []*Seal, b []byte, prefix int) (closed []byte, ok bool) {
	end := len(b) - TagLen
	for _, s := range seals {
		if end >= prefix+PrefixLen && s.Begins(b[prefix:]) && hmac.Equal(s.tag(b[:end]), b[end:]) {
			return b[:end], true
		}
	}
	return nil, false
}

// tag is valid until the next call.
func (s *Seal) tag(b []byte) []byte {
	s.mac.Reset()
	s.mac.Write(b)
	return s.mac.Sum(s.sum[:0])[:TagLen]
}
