package heartbeat

import "time"

// challengeEvery bounds how often one peer is challenged, and so what a recorded packet can cause.
const challengeEvery = 20 * time.Millisecond

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
	from.hold, from.accused, from.deaf = p.hold, from.accused && from.private, p.deaf
	if p.poor {
		from.poorAt = now
	}
	if p.lost {
		from.lostAt = now
	}
	if from.watched = p.watch; p.watch && !from.listed {
		from.listed, from.receipt = true, newReceipt(p.beats)
		d.watching = append(d.watching, from)
	}
	if began {
		from.receipt = newReceipt(p.beats)
	}
	if p.beat {
		from.receipt.beat(p.beats)
	}
	d.clear(now, from)
	if from.private {
		d.welcome(now, from)
	}
	contradict := from.claim.status > Held
	for _, c := range p.claims {
		d.consider(now, from, c)
	}
	switch {
	case began:
		// A new run of it knows nothing yet, least of all which incarnation is its next.
		claims := d.recite()
		if from.claim.status == Alive || from.claim.status == Held {
			claims = append(claims, from.claim)
		}
		d.send(from, packet{answer: p.challenge, claims: claims})
	case p.challenge != 0 || p.ping || contradict && from.claim.status > Held:
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
		if from.challenge == 0 || now-from.challengedAt >= challengeEvery {
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
