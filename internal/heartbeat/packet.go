package heartbeat

import (
	"encoding/binary"
	"errors"
	"time"
)

// packet is what one speaker sends to another; there is one kind for everything.
type packet struct {
	from, to id
	// boot is random for each run of the sender, and seq rises with each packet of the run.
	boot, seq uint64
	// challenge is to be answered by a packet with this answer; 0 is none.
	challenge, answer uint64
	// hold is how long the receiver may hear nothing before it suspects the sender.
	hold time.Duration
	// watch: the receiver is one of the sender's watchers, and will hear of it within hold.
	watch bool
	// ping: answer at once.
	ping bool
	// beat: one of those that come each interval, so that what is missing of them was lost.
	heartbeat bool
	// beats counts those of the sender, this one included.
	heartbeats uint16
	// poor: the sender hears others well, and the receiver badly. deaf: it hears nobody well, by its own fault.
	complains, hearsBadly bool
	claims     []claim
}

// The layout: version, flags, hold in ms, six words, number of beats, number of claims, claims.
const (
	version      = 1
	headLen      = 1 + 1 + 2 + 6*8 + 2 + 1
	claimLen     = 8 + 1 + 1 + 4
	maxClaims    = 64
	maxBodyLen   = headLen + maxClaims*claimLen
	flagWatch    = 1 << 0
	flagPing     = 1 << 1
	flagHeartbeat     = 1 << 2
	flagComplains     = 1 << 3
	flagHearsBadly     = 1 << 4
	flagsKnown   = flagWatch | flagPing | flagHeartbeat | flagComplains | flagHearsBadly
	shortestHold = 20 * time.Millisecond
	longestHold  = 10 * time.Second
)

var errPacket = errors.New("not a heartbeat packet")

// append writes p behind b.
func (p *packet) append(b []byte) []byte {
	var flags byte
	if p.watch {
		flags |= flagWatch
	}
	if p.ping {
		flags |= flagPing
	}
	if p.heartbeat {
		flags |= flagHeartbeat
	}
	if p.complains {
		flags |= flagComplains
	}
	if p.hearsBadly {
		flags |= flagHearsBadly
	}
	b = append(b, version, flags)
	b = binary.BigEndian.AppendUint16(b, uint16(p.hold.Milliseconds()))
	for _, word := range [...]uint64{uint64(p.from), uint64(p.to), p.boot, p.seq, p.challenge, p.answer} {
		b = binary.BigEndian.AppendUint64(b, word)
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
func parsePacket(b []byte, claims []claim) (packet, error) {
	if len(b) < headLen || b[0] != version || b[1]&^flagsKnown != 0 || len(b) != headLen+int(b[headLen-1])*claimLen {
		return packet{}, errPacket
	}
	word := func(i int) uint64 { return binary.BigEndian.Uint64(b[4+8*i:]) }
	p := packet{
		watch: b[1]&flagWatch != 0, ping: b[1]&flagPing != 0, heartbeat: b[1]&flagHeartbeat != 0, complains: b[1]&flagComplains != 0, hearsBadly: b[1]&flagHearsBadly != 0,
		hold: time.Duration(binary.BigEndian.Uint16(b[2:])) * time.Millisecond,
		from: id(word(0)), to: id(word(1)), boot: word(2), seq: word(3), challenge: word(4), answer: word(5),
		heartbeats:  binary.BigEndian.Uint16(b[headLen-3:]),
		claims: claims[:0],
	}
	if b[headLen-1] > maxClaims || p.hold < shortestHold || p.hold > longestHold {
		return packet{}, errPacket
	}
	for b = b[headLen:]; len(b) > 0; b = b[claimLen:] {
		c := claim{
			about: id(binary.BigEndian.Uint64(b)), status: Status(b[8]), deaths: b[9], incarnation: binary.BigEndian.Uint32(b[10:]),
		}
		if !c.isVerdict() && (c.status < ask || c.status > givenUp) {
			return packet{}, errPacket
		}
		p.claims = append(p.claims, c)
	}
	return p, nil
}
