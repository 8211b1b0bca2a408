package detect

import "time"

// challengeInterval bounds how often one peer is challenged, and so what a recorded packet can cause.
const challengeInterval = 20 * time.Millisecond

// Receive takes a packet that is authentic and came from its sender's address, now or since the last tick but one.
func (d *Detector) Receive(at time.Duration, p Packet) {
	from := d.peers[p.From]
	if from == nil || p.To != d.self {
		return
	}
	began := from.session.boot != p.Boot
	if !d.inSession(at, from, p) {
		return
	}
	if p.HearsNone && !began && d.hearsWellBeside(at, from) {
		// It cannot be helped by what it does not hear, nor serve: it counts as silent.
		// Its heartbeats arrived all the same, or the link would look lossy afterwards.
		from.hearsBadly = true
		if p.Heartbeat {
			from.reception.heartbeat(p.Heartbeats)
		}
		if p.Challenge != 0 || p.Ping {
			d.send(from, Packet{Answer: p.Challenge})
		}
		return
	}
	if from.lastHeard == 0 || at-from.lastHeard > heardTime {
		d.version++
	}
	from.lastHeard, from.lastAlive = at, max(from.lastAlive, at)
	from.hold, from.accused, from.hearsBadly = p.Hold, from.accused && from.private, p.HearsBadly
	if p.Complains {
		from.complainedAt = at
	}
	if p.Lost {
		from.lostAt = at
	}
	if from.watched = p.Watch; p.Watch && !from.listed {
		from.listed, from.reception = true, newReception(p.Heartbeats)
		d.watching = append(d.watching, from)
	}
	if began {
		from.reception = newReception(p.Heartbeats)
	}
	if p.Heartbeat {
		from.reception.heartbeat(p.Heartbeats)
	}
	d.clear(at, from)
	if from.private {
		d.readmit(at, from)
	}
	contradict := from.Status > HoldDown
	for _, c := range p.Claims {
		d.handle(at, from, c)
	}
	switch {
	case began:
		// A new run of it knows nothing yet, least of all its next incarnation.
		claims := d.antiEntropy()
		if from.Status.Living() {
			claims = append(claims, from.NodeClaim)
		}
		d.send(from, Packet{Answer: p.Challenge, Claims: claims})
	case p.Challenge != 0 || p.Ping || contradict && from.Status > HoldDown:
		d.send(from, Packet{Answer: p.Challenge})
	}
}

// inSession reports whether the packet belongs to the sender's present run and is new. Otherwise the sender is
// challenged to show that it is running now, also one of whom only old packets come: a thief of the key may have forged
// the latest number.
func (d *Detector) inSession(at time.Duration, from *peerState, p Packet) bool {
	s := &from.session
	switch {
	case s.boot == p.Boot && p.Seq > s.seq:
	case p.Answer != 0 && p.Answer == s.challenge:
		s.boot, s.challenge = p.Boot, 0
		from.suspicion = nil
	case s.boot == p.Boot && at-from.lastHeard <= from.hold:
		return false
	default:
		d.challenge(at, from, p)
		return false
	}
	s.seq = p.Seq
	return true
}

// challenge challenges the sender of a packet that shows no run of it, and answers its challenge. Each has a throttle
// of its own: of two nodes that beat in step, each has just challenged the other when the other's challenge arrives.
func (d *Detector) challenge(at time.Duration, from *peerState, p Packet) {
	s, out := &from.session, Packet{}
	if s.challenge == 0 || at-s.challengedAt >= challengeInterval {
		if s.challenge == 0 {
			s.challenge = d.random()
		}
		s.challengedAt, out.Challenge = at, s.challenge
	}
	if p.Challenge != 0 && (s.answeredAt == 0 || at-s.answeredAt >= challengeInterval) {
		s.answeredAt, out.Answer = at, p.Challenge
	}
	if out.Challenge != 0 || out.Answer != 0 {
		d.send(from, out)
	}
}

// ReceiveRefusal notes that the kernel of the peer's node refused a packet, since no speaker listens there. Once that is
// known it is the sign of life of the node.
func (d *Detector) ReceiveRefusal(at time.Duration, from NodeID) {
	p := d.peers[from]
	if p == nil {
		return
	}
	p.refusedAt = at
	d.stats.Refused++
	if p.Status == SpeakerDown {
		p.lastAlive = at
		d.clear(at, p)
	}
}
