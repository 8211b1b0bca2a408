package heartbeat

import "time"

// challengeEvery bounds how often one peer is challenged, and so what a recorded packet can cause.
const challengeInterval = 20 * time.Millisecond

// receive takes a packet that is authentic and came from its sender's address.
func (d *detector) receive(now time.Duration, p packet) {
	from := d.peers[p.from]
	if from == nil || p.to != d.self {
		return
	}
	began := from.boot != p.boot
	if !d.inSession(now, from, p) {
		return
	}
	if from.lastHeard == 0 || now-from.lastHeard > heardTime {
		d.version++
	}
	from.lastHeard, from.aged = now, now
	from.hold, from.accused, from.hearsBadly = p.hold, from.accused && from.private, p.hearsBadly
	if p.complains {
		from.complainedAt = now
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
	contradict := from.claim.status > HoldDown
	for _, c := range p.claims {
		d.handle(now, from, c)
	}
	switch {
	case began:
		// A new run of it knows nothing yet, least of all which incarnation is its next.
		claims := d.antiEntropy()
		if from.claim.status == Alive || from.claim.status == HoldDown {
			claims = append(claims, from.claim)
		}
		d.send(from, packet{answer: p.challenge, claims: claims})
	case p.challenge != 0 || p.ping || contradict && from.claim.status > HoldDown:
		d.send(from, packet{answer: p.challenge})
	}
}

// inSession reports whether the packet belongs to the sender's present run and
// is new. Otherwise the sender is challenged to show that it is running now.
func (d *detector) inSession(now time.Duration, from *peer, p packet) bool {
	switch {
	case from.boot == p.boot:
		if p.seq <= from.seq {
			return false
		}
	case p.answer != 0 && p.answer == from.challenge:
		from.boot, from.challenge = p.boot, 0
		from.suspicion = nil
	default:
		if from.challenge == 0 || now-from.challengedAt >= challengeInterval {
			if from.challenge == 0 {
				from.challenge = d.random()
			}
			from.challengedAt = now
			d.send(from, packet{challenge: from.challenge, answer: p.challenge})
		}
		return false
	}
	from.seq = p.seq
	return true
}

// refused: the kernel of the peer's node refused a packet, since no speaker listens there.
func (d *detector) refused(now time.Duration, p *peer) {
	p.refusedAt = now
	d.counts.refused++
}
