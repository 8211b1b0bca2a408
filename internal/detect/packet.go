package detect

import (
	"encoding/binary"
	"time"
)

// Packet is the one kind of message between speakers. It is a heartbeat, a question, a reply, a broadcast, or several
// of these.
type Packet struct {
	From, To NodeID
	// Boot is a random number of the sender's run. Seq rises with each packet of the run.
	Boot, Seq uint64
	// Challenge asks for a packet with the same number as its Answer. Zero is none.
	Challenge, Answer uint64
	// Hold is how long the receiver may hear nothing before it suspects the sender.
	Hold time.Duration
	// Watch reports whether the receiver is one of the sender's watchers. The sender promises it a packet within
	// Hold.
	Watch bool
	// Ping asks for a packet at once.
	Ping bool
	// Heartbeat reports whether this is one of the heartbeats of each interval. Heartbeats numbers them, this one
	// included, so that the receiver can count lost ones.
	Heartbeat  bool
	Heartbeats uint16
	// Complains reports whether the sender hears others well, and the receiver badly.
	Complains bool
	// Lost reports whether a complaining sender hears so little of the receiver that it cannot serve clients either.
	Lost bool
	// HearsBadly reports whether the sender hears no node well, and is faulty itself.
	HearsBadly bool
	// HearsNone reports whether the sender hears none of several nodes, and does not know which side is faulty.
	HearsNone bool
	// LacksDatagrams asks for frames: the sender gets no datagrams of the receiver. Only a packet that goes as a frame
	// has it, because older speakers do not read it.
	LacksDatagrams bool
	Claims         []NodeClaim
}

// The layout of a packet, in network byte order: version, flags, hold in ms, six numbers of 64 bits, number of the
// heartbeat, number of claims, claims.
const (
	layoutVersion = 1
	headLen       = 1 + 1 + 2 + 6*8 + 2 + 1
	claimLen      = 8 + 1 + 1 + 4
	maxClaims     = 64
	// MaxPacketLen is the length of the longest packet.
	MaxPacketLen = headLen + maxClaims*claimLen

	// minHold and maxHold bound the hold of a packet.
	minHold = 20 * time.Millisecond
	maxHold = 10 * time.Second
)

// These let a socket filter find routine heartbeats, which may wait for the receiver's own: among the flags of such a
// packet FlagHeartbeat is set, FlagWatch may be set, and no other is. Its challenge and answer, 16 octets in all, are
// 0.
const (
	FlagsOffset     = 1
	FlagWatch       = 1 << 0
	FlagHeartbeat   = 1 << 2
	ChallengeOffset = 4 + 4*8
)

// flags returns the flags of a packet, the lowest bit first.
func (p *Packet) flags() [8]*bool {
	return [...]*bool{
		&p.Watch,
		&p.Ping,
		&p.Heartbeat,
		&p.Complains,
		&p.HearsBadly,
		&p.Lost,
		&p.HearsNone,
		&p.LacksDatagrams,
	}
}

// Append writes the packet behind b.
func (p *Packet) Append(b []byte) []byte {
	var flags byte
	for bit, set := range p.flags() {
		if *set {
			flags |= 1 << bit
		}
	}

	b = append(b, layoutVersion, flags)
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

// ParsePacket reads a packet that is all of b. It puts the claims into the memory of claims, and reports whether the
// packet is valid.
func ParsePacket(b []byte, claims []NodeClaim) (p Packet, ok bool) {
	if len(b) < headLen || b[0] != layoutVersion {
		return Packet{}, false
	}

	count := int(b[headLen-1])
	if count > maxClaims || len(b) != headLen+count*claimLen {
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
		*set = b[FlagsOffset]&(1<<bit) != 0
	}
	if p.Hold < minHold || p.Hold > maxHold {
		return Packet{}, false
	}

	for b = b[headLen:]; len(b) > 0; b = b[claimLen:] {
		c := NodeClaim{
			About:       NodeID(binary.BigEndian.Uint64(b)),
			Status:      Status(b[8]),
			Deaths:      b[9],
			Incarnation: binary.BigEndian.Uint32(b[10:]),
		}
		if !c.isAssertion() && (c.Status < query || c.Status > privateDeath) {
			return Packet{}, false
		}
		p.Claims = append(p.Claims, c)
	}

	return p, true
}
