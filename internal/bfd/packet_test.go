package bfd

import (
	"bytes"
	"testing"
	"time"
)

func sample() packet {
	return packet{
		diagnostic: Signaled, state: Up, poll: true, demand: true, multiplier: 3, myDiscr: 0x01020304, yourDiscr: 0x0a0b0c0d,
		transmit: 50 * time.Millisecond, receive: 300 * time.Millisecond,
	}
}

// TestPacketOnTheWire: the octets have the layout of RFC 5880 section 4.1.
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
	if back, ok := parse(want); !ok || back != p {
		t.Errorf("parse made %+v, %v of what marshal wrote for %+v", back, ok, p)
	}
}

// TestParseRefuses: every check of RFC 5880 section 6.8.6 that needs no session.
func TestParseRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		change func([]byte) []byte
		want   bool
	}{
		"good":                      {func(b []byte) []byte { return b }, true},
		"behind it more":            {func(b []byte) []byte { return append(b, 1, 2, 3) }, true},
		"empty":                     {func([]byte) []byte { return nil }, false},
		"one octet too few":         {func(b []byte) []byte { return b[:packetLen-1] }, false},
		"version 0":                 {func(b []byte) []byte { b[0] &= 0x1f; return b }, false},
		"version 2":                 {func(b []byte) []byte { b[0] = 0x43; return b }, false},
		"length too small":          {func(b []byte) []byte { b[3] = 23; return b }, false},
		"length beyond the payload": {func(b []byte) []byte { b[3] = 25; return b }, false},
		"authenticated, too short":  {func(b []byte) []byte { b[1] |= 4; return append(b, 0) }, false},
		"multiplier 0":              {func(b []byte) []byte { b[2] = 0; return b }, false},
		"multipoint":                {func(b []byte) []byte { b[1] |= 1; return b }, false},
		"no discriminator":          {func(b []byte) []byte { copy(b[4:], make([]byte, 4)); return b }, false},
		"up without the other's":    {func(b []byte) []byte { copy(b[8:], make([]byte, 4)); return b }, false},
		"init without the other's": {func(b []byte) []byte {
			b[1] = byte(Init) << 6
			copy(b[8:], make([]byte, 4))
			return b
		}, false},
		"down without the other's": {func(b []byte) []byte {
			b[1] = byte(Down) << 6
			copy(b[8:], make([]byte, 4))
			return b
		}, true},
	} {
		var b [packetLen]byte
		p := sample()
		p.marshal(&b)
		if _, got := parse(tt.change(b[:])); got != tt.want {
			t.Errorf("%s: accepted is %v, want %v", name, got, tt.want)
		}
	}
}

// TestMarshalSaturates: an interval beyond what 32 bits of microseconds can say is sent as the longest, and never wraps
// to a short one.
func TestMarshalSaturates(t *testing.T) {
	var b [packetLen]byte
	p := sample()
	p.transmit, p.receive = 2*maxInterval, -time.Second
	p.marshal(&b)
	if got, ok := parse(b[:]); !ok || got.transmit != maxInterval || got.receive != 0 {
		t.Errorf("got %v and %v, %v", got.transmit, got.receive, ok)
	}
}

// FuzzParse: what parse accepts, marshal writes again.
func FuzzParse(f *testing.F) {
	var b [packetLen]byte
	p := sample()
	p.marshal(&b)
	f.Add(b[:])
	f.Add(append(b[:], 1, 2, 3, 4))
	f.Fuzz(func(t *testing.T, in []byte) {
		p, ok := parse(in)
		if !ok {
			return
		}
		var out [packetLen]byte
		p.marshal(&out)
		back, ok := parse(out[:])
		p.authenticated = false // marshal never writes it
		if !ok || back != p {
			t.Errorf("%+v became %+v, %v", p, back, ok)
		}
	})
}
