package detect

import (
	"encoding/binary"
	"time"
)

// Packet is what one speaker sends to another; there is one kind for everything.
type Packet struct {
	From, To NodeID
	// boot is random for each run of the sender, and seq rises with each packet of the run.
	Boot, Seq uint64
	// challenge asks for a packet with the same number as its answer; 0 is none.
	Challenge, Answer uint64
	// hold is how long the receiver may hear nothing before it suspects the sender.
	Hold time.Duration
	// watch: the receiver is one of the sender's watchers, and will hear from the sender within hold.
	Watch bool
	// ping asks for an answer at once.
	Ping bool
	// heartbeat: one of those that come each interval. heartbeats counts them, this one included, so that the
	// receiver knows how many were lost.
	Heartbeat  bool
	Heartbeats uint16
	// complains: the sender hears others well, and the receiver badly; lost: so badly that the receiver cannot serve
	// clients either. hearsBadly: the sender hears no node well, and is itself at fault. hearsNone: it hears none of
	// several, and does not know whose fault that is.
	Complains, Lost, HearsBadly, HearsNone bool
	Claims                                 []NodeClaim
}

// The layout: version, flags, hold in ms, six numbers of 64 bits, heartbeats, number of claims, claims.
const (
	version      = 1
	headLen      = 1 + 1 + 2 + 6*8 + 2 + 1
	claimLen     = 8 + 1 + 1 + 4
	maxClaims    = 64
	MaxPacketLen = headLen + maxClaims*claimLen
	shortestHold = 20 * time.Millisecond
	longestHold  = 10 * time.Second
)

// flags are the flags of a packet, the lowest bit first; the filter knows two of them.
func (p *Packet) flags() [7]*bool {
	return [...]*bool{&p.Watch, &p.Ping, &p.Heartbeat, &p.Complains, &p.HearsBadly, &p.Lost, &p.HearsNone}
}

// What a socket filter needs to tell a packet that can wait from others: see doc.go.
const (
	FlagsOffset     = 1
	FlagWatch       = 1 << 0
	FlagHeartbeat   = 1 << 2
	ChallengeOffset = 4 + 4*8
	flagsKnown      = 1<<7 - 1
)

// Append writes p behind b.
func (p *Packet) Append(b []byte) []byte {
	var flags byte
	for bit, set := range p.flags() {
		if *set {
			flags |= 1 << bit
		}
	}
	b = append(b, version, flags)
	b = binary.BigEndian.AppendUint16(b, uint16(p.Hold.Milliseconds()))
	for _, n := range [...]uint64{uint64(p.From), uint64(p.To), p.Boot, p.Seq, p.Challenge, p.Answer} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	b = binary.BigEndian.AppendUint16(b, p.Heartbeats)
	b = append(b, byte(len(p.Claims)))
	for _, c := range p.Claims {
		b = binary.BigEndian.AppendUint64(b, uint64(c.About))
		b = append(b, byte(c.Status), c.Deaths)
		b = binary.BigEndian.AppendUint32(b, c.Incarnation)
	}
	return b
}

// ParsePacket reads a whole packet; the claims are appended to claims[:0].
func ParsePacket(b []byte, claims []NodeClaim) (p Packet, ok bool) {
	if len(b) < headLen || b[0] != version || b[1]&^flagsKnown != 0 || len(b) != headLen+int(b[headLen-1])*claimLen {
		return Packet{}, false
	}
	number := func(i int) uint64 { return binary.BigEndian.Uint64(b[4+8*i:]) }
	p = Packet{
		Hold:       time.Duration(binary.BigEndian.Uint16(b[2:])) * time.Millisecond,
		From:       NodeID(number(0)),
		To:         NodeID(number(1)),
		Boot:       number(2),
		Seq:        number(3),
		Challenge:  number(4),
		Answer:     number(5),
		Heartbeats: binary.BigEndian.Uint16(b[headLen-3:]),
		Claims:     claims[:0],
	}
	for bit, set := range p.flags() {
		*set = b[1]&(1<<bit) != 0
	}
	if b[headLen-1] > maxClaims || p.Hold < shortestHold || p.Hold > longestHold {
		return Packet{}, false
	}
	for b = b[headLen:]; len(b) > 0; b = b[claimLen:] {
		c := NodeClaim{
			About:       NodeID(binary.BigEndian.Uint64(b)),
			Status:      Status(b[8]),
			Deaths:      b[9],
			Incarnation: binary.BigEndian.Uint32(b[10:]),
		}
		if !c.isVerdict() && (c.Status < ask || c.Status > givenUp) {
			return Packet{}, false
		}
		p.Claims = append(p.Claims, c)
	}
	return p, true
}
