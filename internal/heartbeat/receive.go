package heartbeat

import "time"

// challengeInterval bounds how often one peer is challenged, and so what a recorded packet can cause.
const challengeInterval = 20 * time.Millisecond

// receive takes a packet that is authentic and came from its sender's address, now or since the last tick but one.
func (d *detector) receive(now time.Duration, p packet) {
	from := d.peers[p.from]
	if from == nil || p.to != d.self {
		return
	}
	began := from.session.boot != p.boot
	if !d.inSession(now, from, p) {
		return
	}
	if p.hearsNone && !began && d.hearsWellBeside(now, from) {
		// It cannot be helped by what it does not hear, nor serve: it counts as silent.
		// Its heartbeats arrived all the same, or the link would look lossy afterwards.
		from.hearsBadly = true
		if p.heartbeat {
			from.reception.heartbeat(p.heartbeats)
		}
		if p.challenge != 0 || p.ping {
			d.send(from, packet{answer: p.challenge})
		}
		return
	}
	if from.lastHeard == 0 || now-from.lastHeard > heardTime {
		d.version++
	}
	from.lastHeard, from.lastAlive = now, max(from.lastAlive, now)
	from.hold, from.accused, from.hearsBadly = p.hold, from.accused && from.private, p.hearsBadly
	if p.complains {
		from.complainedAt = now
	}
	if p.lost {
		from.lostAt = now
	}
	if from.watched = p.watch; p.watch && !from.listed {
		from.listed, from.reception = true, newReception(p.heartbeats)
		d.watching = append(d.watching, from)
	}
	if began {
		from.reception = newReception(p.heartbeats)
	}
	if p.heartbeat {
		from.reception.heartbeat(p.heartbeats)
	}
	d.clear(now, from)
	if from.private {
		d.readmit(now, from)
	}
	contradict := from.status > HoldDown
	for _, c := range p.claims {
		d.handle(now, from, c)
	}
	switch {
	case began:
		// A new run of it knows nothing yet, least of all its next incarnation.
		claims := d.antiEntropy()
		if from.status.Living() {
			claims = append(claims, from.claim)
		}
		d.send(from, packet{answer: p.challenge, claims: claims})
	case p.challenge != 0 || p.ping || contradict && from.status > HoldDown:
		d.send(from, packet{answer: p.challenge})
	}
}

// inSession reports whether the packet belongs to the sender's present run and is new. Otherwise the sender is
// challenged to show that it is running now, also one of whom only old packets come: a thief of the key may have forged
// the latest number.
func (d *detector) inSession(now time.Duration, from *peer, p packet) bool {
	s := &from.session
	switch {
	case s.boot == p.boot && p.seq > s.seq:
	case p.answer != 0 && p.answer == s.challenge:
		s.boot, s.challenge = p.boot, 0
		from.suspicion = nil
	case s.boot == p.boot && now-from.lastHeard <= from.hold:
		return false
	default:
		d.challenge(now, from, p)
		return false
	}
	s.seq = p.seq
	return true
}

// challenge challenges the sender of a packet that shows no run of it, and answers its challenge. Each has a throttle
// of its own: of two nodes that beat in step, each has just challenged the other when the other's challenge arrives.
func (d *detector) challenge(now time.Duration, from *peer, p packet) {
	s, out := &from.session, packet{}
	if s.challenge == 0 || now-s.challengedAt >= challengeInterval {
		if s.challenge == 0 {
			s.challenge = d.random()
		}
		s.challengedAt, out.challenge = now, s.challenge
	}
	if p.challenge != 0 && (s.answeredAt == 0 || now-s.answeredAt >= challengeInterval) {
		s.answeredAt, out.answer = now, p.challenge
	}
	if out.challenge != 0 || out.answer != 0 {
		d.send(from, out)
	}
}

// refused: the kernel of the peer's node refused a packet, since no speaker listens there. Once that is known it is the
// sign of life of the node.
func (d *detector) refused(now time.Duration, p *peer) {
	p.refusedAt = now
	d.counts.refused.Add(1)
	if p.status == SpeakerDown {
		p.lastAlive = now
		d.clear(now, p)
	}
}
