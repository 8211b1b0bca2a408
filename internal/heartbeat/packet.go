package heartbeat

import (
	"encoding/binary"
	"time"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

// packet is what one speaker sends to another; there is one kind for everything.
type packet struct {
	from, to id
	// boot is random for each run of the sender, and seq rises with each packet of the run.
	boot, seq uint64
	// challenge asks for a packet with the same number as its answer; 0 is none.
	challenge, answer uint64
	// hold is how long the receiver may hear nothing before it suspects the sender.
	hold time.Duration
	// watch: the receiver is one of the sender's watchers, and will hear from the sender within hold.
	watch bool
	// ping asks for an answer at once.
	ping bool
	// heartbeat: one of those that come each interval. heartbeats counts them, this one included, so that the
	// receiver knows how many were lost.
	heartbeat  bool
	heartbeats uint16
	// complains: the sender hears others well, and the receiver badly; lost: so badly that the receiver cannot serve
	// clients either. hearsBadly: the sender hears nobody well, and is itself at fault. hearsNone: it hears none of
	// several, and does not know whose fault that is.
	complains, lost, hearsBadly, hearsNone bool
	claims                                 []claim
}

// The layout: version, flags, hold in ms, six numbers of 64 bits, heartbeats, number of claims, claims.
const (
	version      = 1
	headLen      = 1 + 1 + 2 + 6*8 + 2 + 1
	claimLen     = 8 + 1 + 1 + 4
	maxClaims    = 64
	maxBodyLen   = headLen + maxClaims*claimLen
	shortestHold = 20 * time.Millisecond
	longestHold  = 10 * time.Second
)

// flags are those of a packet, the lowest bit first; the filter knows two of them.
func (p *packet) flags() [7]*bool {
	return [...]*bool{&p.watch, &p.ping, &p.heartbeat, &p.complains, &p.hearsBadly, &p.lost, &p.hearsNone}
}

const flagWatch, flagHeartbeat, flagsKnown = 1 << 0, 1 << 2, 1<<7 - 1

// append writes p behind b.
func (p *packet) append(b []byte) []byte {
	var flags byte
	for bit, is := range p.flags() {
		if *is {
			flags |= 1 << bit
		}
	}
	b = append(b, version, flags)
	b = binary.BigEndian.AppendUint16(b, uint16(p.hold.Milliseconds()))
	for _, n := range [...]uint64{uint64(p.from), uint64(p.to), p.boot, p.seq, p.challenge, p.answer} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	b = binary.BigEndian.AppendUint16(b, p.heartbeats)
	b = append(b, byte(len(p.claims)))
	for _, c := range p.claims {
		b = binary.BigEndian.AppendUint64(b, uint64(c.about))
		b = append(b, byte(c.status), c.deaths)
		b = binary.BigEndian.AppendUint32(b, c.incarnation)
	}
	return b
}

// parsePacket reads a whole packet; the claims are appended to claims[:0].
func parsePacket(b []byte, claims []claim) (p packet, ok bool) {
	if len(b) < headLen || b[0] != version || b[1]&^flagsKnown != 0 || len(b) != headLen+int(b[headLen-1])*claimLen {
		return packet{}, false
	}
	number := func(i int) uint64 { return binary.BigEndian.Uint64(b[4+8*i:]) }
	p = packet{
		hold:       time.Duration(binary.BigEndian.Uint16(b[2:])) * time.Millisecond,
		from:       id(number(0)),
		to:         id(number(1)),
		boot:       number(2),
		seq:        number(3),
		challenge:  number(4),
		answer:     number(5),
		heartbeats: binary.BigEndian.Uint16(b[headLen-3:]),
		claims:     claims[:0],
	}
	for bit, is := range p.flags() {
		*is = b[1]&(1<<bit) != 0
	}
	if b[headLen-1] > maxClaims || p.hold < shortestHold || p.hold > longestHold {
		return packet{}, false
	}
	for b = b[headLen:]; len(b) > 0; b = b[claimLen:] {
		c := claim{
			about:       id(binary.BigEndian.Uint64(b)),
			status:      Status(b[8]),
			deaths:      b[9],
			incarnation: binary.BigEndian.Uint32(b[10:]),
		}
		if !c.isVerdict() && (c.status < ask || c.status > givenUp) {
			return packet{}, false
		}
		p.claims = append(p.claims, c)
	}
	return p, true
}

// sealKind is the kind of packets that heartbeats are.
const sealKind = "heartbeat"

// maxDatagram fits into any link's MTU.
const maxDatagram = rt.PrefixLen + maxBodyLen + rt.TagLen

// closed writes p as a datagram to b.
func closed(s *rt.Seal, b []byte, p *packet) []byte {
	return s.Close(p.append(binary.BigEndian.AppendUint64(b[:0], s.Prefix)))
}
