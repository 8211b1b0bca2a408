package bfd

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

func sample() packet {
	return packet{
		diagnostic: Signaled, state: Up, poll: true, demand: true, multiplier: 3, mine: 0x01020304, yours: 0x0a0b0c0d,
		transmit: 50 * time.Millisecond, receive: 300 * time.Millisecond,
	}
}

// The octets are those of RFC 5880 section 4.1.
func TestPacketOnTheWire(t *testing.T) {
	var got [packetLen]byte
	p := sample()
	p.marshal(&got)
	want := []byte{
		0x23, 0xe2, 3, 24, 1, 2, 3, 4, 0x0a, 0x0b, 0x0c, 0x0d,
		0, 0, 0xc3, 0x50, 0, 0x04, 0x93, 0xe0, 0, 0, 0, 0,
	}
	if !bytes.Equal(got[:], want) {
		t.Errorf("marshal made\n% x, want\n% x", got, want)
	}
	if back, err := parse(want); err != nil || back != p {
		t.Errorf("parse made %+v, %v of what marshal wrote for %+v", back, err, p)
	}
}

// Every check of RFC 5880 section 6.8.6 that needs no session.
func TestParseRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		change func([]byte) []byte
		want   error
	}{
		"good":                      {func(b []byte) []byte { return b }, nil},
		"behind it more":            {func(b []byte) []byte { return append(b, 1, 2, 3) }, nil},
		"empty":                     {func([]byte) []byte { return nil }, errShort},
		"one octet too few":         {func(b []byte) []byte { return b[:packetLen-1] }, errShort},
		"version 0":                 {func(b []byte) []byte { b[0] &= 0x1f; return b }, errVersion},
		"version 2":                 {func(b []byte) []byte { b[0] = 0x43; return b }, errVersion},
		"length too small":          {func(b []byte) []byte { b[3] = 23; return b }, errLength},
		"length beyond the payload": {func(b []byte) []byte { b[3] = 25; return b }, errLength},
		"authenticated, too short":  {func(b []byte) []byte { b[1] |= 4; return append(b, 0) }, errLength},
		"multiplier 0":              {func(b []byte) []byte { b[2] = 0; return b }, errMultiplier},
		"multipoint":                {func(b []byte) []byte { b[1] |= 1; return b }, errMultipoint},
		"no discriminator":          {func(b []byte) []byte { copy(b[4:], make([]byte, 4)); return b }, errDiscriminator},
		"up without the other's":    {func(b []byte) []byte { copy(b[8:], make([]byte, 4)); return b }, errDiscriminator},
		"init without the other's": {func(b []byte) []byte {
			b[1] = byte(Init) << 6
			copy(b[8:], make([]byte, 4))
			return b
		}, errDiscriminator},
		"down without the other's": {func(b []byte) []byte {
			b[1] = byte(Down) << 6
			copy(b[8:], make([]byte, 4))
			return b
		}, nil},
	} {
		var b [packetLen]byte
		p := sample()
		p.marshal(&b)
		if _, err := parse(tt.change(b[:])); !errors.Is(err, tt.want) {
			t.Errorf("%s: parse returned %v, want %v", name, err, tt.want)
		}
	}
}

// An interval beyond what 32 bits of microseconds can say is sent as the longest, and never wraps to a short one.
func TestMarshalSaturates(t *testing.T) {
	var b [packetLen]byte
	p := sample()
	p.transmit, p.receive = 2*longestInterval, -time.Second
	p.marshal(&b)
	if got, err := parse(b[:]); err != nil || got.transmit != longestInterval || got.receive != 0 {
		t.Errorf("got %v and %v, %v", got.transmit, got.receive, err)
	}
}

// What parse accepts, marshal writes again.
func FuzzParse(f *testing.F) {
	var b [packetLen]byte
	p := sample()
	p.marshal(&b)
	f.Add(b[:])
	f.Add(append(b[:], 1, 2, 3, 4))
	f.Fuzz(func(t *testing.T, in []byte) {
		p, err := parse(in)
		if err != nil {
			return
		}
		var out [packetLen]byte
		p.marshal(&out)
		back, err := parse(out[:])
		p.authenticated = false // marshal never writes it
		if err != nil || back != p {
			t.Errorf("%+v became %+v, %v", p, back, err)
		}
	})
}
