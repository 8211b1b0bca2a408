package detect

import "time"

// challengeInterval bounds how often a peer is challenged, and so what a recorded packet can cause.
const challengeInterval = 20 * time.Millisecond

// Receive takes a packet that is authentic and came from its sender's address. A packet that waited may have come
// before the last Tick, but not before the one before.
func (d *Detector) Receive(at time.Duration, p Packet) { d.receive(at, p, false) }

// receive takes a packet that came as a frame or as a datagram.
func (d *Detector) receive(at time.Duration, p Packet, isFrame bool) {
	from := d.peers[p.From]
	if from == nil || p.To != d.self {
		return
	}

	isNewRun := from.session.boot != p.Boot
	isAccepted := d.acceptsSession(at, from, p)
	from.noteCarrier(at, p, isFrame)
	if !isAccepted {
		return
	}
	if p.HearsNone && !isNewRun && d.hearsWellWithout(at, from) {
		d.receiveFromDeaf(from, p)
		return
	}

	d.noteHeard(at, from, p, isNewRun)
	d.clearSuspicion(at, from)
	if from.private {
		d.readmit(at, from)
	}

	wasClaimedDown := from.Status > HoldDown
	for _, c := range p.Claims {
		d.handleClaim(at, from, c)
	}

	switch {
	case isNewRun:
		// A new run has no claims yet, least of all its next incarnation.
		claims := d.antiEntropy()
		if from.Status.Living() {
			claims = append(claims, from.NodeClaim)
		}
		d.send(from, Packet{Answer: p.Challenge, Claims: claims})
	case p.Challenge != 0 || p.Ping || wasClaimedDown && from.Status > HoldDown:
		d.send(from, Packet{Answer: p.Challenge})
	}
}

// receiveFromDeaf takes a packet of a peer that hears no node, while this node hears others well. The peer counts as
// silent: it cannot serve, and cannot be helped by packets that it does not hear. Its heartbeats are counted all the
// same, or the link would look lossy afterwards.
func (d *Detector) receiveFromDeaf(from *peerState, p Packet) {
	from.hearsBadly = true
	if p.Heartbeat {
		from.reception.heartbeat(p.Heartbeats)
	}
	if p.Challenge != 0 || p.Ping {
		d.send(from, Packet{Answer: p.Challenge})
	}
}

// noteHeard takes what a packet shows about its sender, except its claims.
func (d *Detector) noteHeard(at time.Duration, from *peerState, p Packet, isNewRun bool) {
	if from.lastHeard == 0 || at-from.lastHeard > heardTime {
		d.version++
	}
	from.noteRefusalRefuted(at, isNewRun)
	from.lastHeard = at
	from.lastAlive = max(from.lastAlive, at)
	from.hold = p.Hold
	from.accused = from.accused && from.private
	from.hearsBadly = p.HearsBadly
	if p.Complains {
		from.complainedAt, d.complainedAt = at, at
	}
	if p.Lost {
		from.lostAt, d.complainedAt = at, at
	}
	if p.Ping {
		from.noteAsked(at)
	}

	from.watched = p.Watch
	if p.Watch && !from.listed {
		from.listed = true
		from.reception = newReception(p.Heartbeats)
		d.watching = append(d.watching, from)
	}
	if isNewRun {
		from.reception = newReception(p.Heartbeats)
	}
	if p.Heartbeat {
		from.reception.heartbeat(p.Heartbeats)
	}
}

// acceptsSession reports whether a packet is new and belongs to the present run of its sender. Otherwise it
// challenges the sender to show that it is running now. It does so even if only old packets come: a thief of the key
// may have forged the highest number.
func (d *Detector) acceptsSession(at time.Duration, from *peerState, p Packet) bool {
	s := &from.session
	isSameRun := s.boot == p.Boot
	isAnswer := p.Answer != 0 && p.Answer == s.challenge
	switch {
	case isSameRun && p.Seq > s.seq:
	case isAnswer:
		s.boot = p.Boot
		s.challenge = 0
		from.suspicion = nil
	case isSameRun && at-from.lastHeard <= from.hold:
		return false
	default:
		d.challenge(at, from, p)
		return false
	}
	s.seq = p.Seq

	return true
}

// challenge challenges the sender of a packet without a session, and answers the sender's challenge. Each has a limit
// of its own: of two nodes that beat in step, each has just challenged the other when the other's challenge arrives.
func (d *Detector) challenge(at time.Duration, from *peerState, p Packet) {
	var out Packet
	s := &from.session
	isNew := s.challenge == 0
	if isNew {
		s.challenge = d.random()
	}
	if isNew || at-s.challengedAt >= challengeInterval {
		s.challengedAt = at
		out.Challenge = s.challenge
	}

	mayAnswer := s.answeredAt == 0 || at-s.answeredAt >= challengeInterval
	if p.Challenge != 0 && mayAnswer {
		s.answeredAt = at
		out.Answer = p.Challenge
	}
	if out.Challenge != 0 || out.Answer != 0 {
		d.send(from, out)
	}
}

// ReceiveRefusal notes that the kernel of a peer's node refused a packet, because no speaker listens there. While its
// speaker is down, that is the node's sign of life.
func (d *Detector) ReceiveRefusal(at time.Duration, from NodeID) {
	p := d.peers[from]
	if p == nil {
		return
	}

	p.refusedAt = at
	d.stats.Refused++
	if p.Status == SpeakerDown {
		p.lastAlive = at
		d.clearSuspicion(at, p)
	}
}
