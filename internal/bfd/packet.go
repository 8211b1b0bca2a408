package bfd

import (
	"encoding/binary"
	"math"
	"time"
)

// packetLen is the length of a Control packet without authentication (RFC 5880 section 4.1).
const packetLen = 24

// The fields of the first four octets (RFC 5880 section 4.1).
const (
	version                                          = 1
	versionShift, stateShift                         = 5, 6
	diagnosticMask                                   = 0x1f
	pollBit, finalBit                  uint8         = 0x20, 0x10
	authenticationBit                  uint8         = 0x04
	demandBit, multipointBit           uint8         = 0x02, 0x01
	offFlags, offMultiplier, offLength               = 1, 2, 3
	offMyDiscr, offYourDiscr                         = 4, 8
	offTransmit, offReceive, offEcho                 = 12, 16, 20
	minAuthenticatedLen                              = packetLen + 2
	maxInterval                        time.Duration = math.MaxUint32 * time.Microsecond
)

// packet is a Control packet.
type packet struct {
	diagnostic    Diagnostic
	state         State
	poll, final   bool
	authenticated bool
	demand        bool
	multiplier    uint8
	// myDiscr is the sender's discriminator, and yourDiscr the receiver's; 0 if the sender does not have it.
	myDiscr, yourDiscr uint32
	// transmit is Desired Min TX Interval, and receive is Required Min RX Interval.
	transmit, receive time.Duration
}

// parse decodes a packet, and makes the checks of RFC 5880 section 6.8.6 that need no session. It ignores the octets
// behind the packet, such as an authentication section.
func parse(b []byte) (p packet, ok bool) {
	if len(b) < packetLen {
		return packet{}, false
	}

	flags, length := b[offFlags], int(b[offLength])
	p = packet{
		diagnostic:    Diagnostic(b[0] & diagnosticMask),
		state:         State(flags >> stateShift),
		poll:          flags&pollBit != 0,
		final:         flags&finalBit != 0,
		authenticated: flags&authenticationBit != 0,
		demand:        flags&demandBit != 0,
		multiplier:    b[offMultiplier],
		myDiscr:       binary.BigEndian.Uint32(b[offMyDiscr:]),
		yourDiscr:     binary.BigEndian.Uint32(b[offYourDiscr:]),
		transmit:      interval(b[offTransmit:]),
		receive:       interval(b[offReceive:]),
	}

	switch {
	case b[0]>>versionShift != version, p.multiplier == 0, flags&multipointBit != 0:
		return packet{}, false
	case length < packetLen, p.authenticated && length < minAuthenticatedLen, length > len(b):
		return packet{}, false
	case p.myDiscr == 0, p.yourDiscr == 0 && p.state > Down: // the discriminators do not fit the state
		return packet{}, false
	}

	return p, true
}

// marshal encodes the packet into b.
func (p *packet) marshal(b *[packetLen]byte) {
	b[0] = version<<versionShift | uint8(p.diagnostic)&diagnosticMask
	flags := flag(pollBit, p.poll) | flag(finalBit, p.final) | flag(demandBit, p.demand)
	b[offFlags] = uint8(p.state)<<stateShift | flags
	b[offMultiplier], b[offLength] = p.multiplier, packetLen
	binary.BigEndian.PutUint32(b[offMyDiscr:], p.myDiscr)
	binary.BigEndian.PutUint32(b[offYourDiscr:], p.yourDiscr)
	putInterval(b[offTransmit:], p.transmit)
	putInterval(b[offReceive:], p.receive)
	putInterval(b[offEcho:], 0) // Required Min Echo RX Interval: no Echo packets
}

// flag returns the bit if it is set, otherwise 0.
func flag(bit uint8, isSet bool) uint8 {
	if isSet {
		return bit
	}
	return 0
}

// interval decodes an interval, which is in microseconds on the wire.
func interval(b []byte) time.Duration {
	return time.Duration(binary.BigEndian.Uint32(b)) * time.Microsecond
}

// putInterval encodes an interval.
func putInterval(b []byte, d time.Duration) {
	binary.BigEndian.PutUint32(b, uint32(min(max(d, 0), maxInterval)/time.Microsecond))
}
