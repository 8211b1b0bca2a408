package detect

import "time"

// WireReply is what came of questions on the wire.
type WireReply uint8

const (
	// NotAsked: there was no machine to ask.
	NotAsked WireReply = iota
	// Unanswered: those who were asked did not answer two of three questions.
	Unanswered
	// Answered two of three questions at least.
	Answered
)

// WireAnswer is what the wire shows about a node whose heartbeats are missed.
type WireAnswer struct {
	// Node is the node itself, asked for an address that it announces.
	Node WireReply
	// Foreign are machines that are no speakers and answered before: they show whether this node's own
	// link works.
	Foreign WireReply
	// Elsewhere is the speaker of the node, asked on the other links that both share; NotAsked where the link of the
	// heartbeats is not shared, or where it never answered there.
	Elsewhere WireReply
	// Hears: asked there, it said that it hears another speaker, or a foreign machine, on the link of the heartbeats.
	// HearsNone: it said that it does not. An older speaker says neither.
	Hears, HearsNone bool
	// ForeignElsewhere are foreign machines on those links.
	ForeignElsewhere WireReply
}

// livesElsewhere reports whether the answer shows, to a node that hears no other speaker, that this one lives and is
// not at fault. It is at fault where a foreign machine on the link of the heartbeats answers the asking node.
func (a WireAnswer) livesElsewhere() bool { return a.Elsewhere == Answered && a.Foreign != Answered }

// dead reports whether the answer shows that the node is dead though this node's link of the heartbeats does not work:
// another link does, and the node does not answer there.
func (a WireAnswer) dead() bool { return a.Elsewhere == Unanswered && a.ForeignElsewhere == Answered }

const (
	// wireTime is what an answer of the wire may take: three questions in 30 ms, and the way back to the detector.
	wireTime = 40 * time.Millisecond
	// wireInterval is the time between questions about a node that stays silent. A node that answers them keeps what
	// it has, and is given up after three without an answer.
	wireInterval = 100 * time.Millisecond
	wirePatience = 3 * wireInterval
	// slowWireInterval is the time between questions about a node that this one declared dead.
	slowWireInterval = time.Second
	// readmitTime is how long a node has to react to the news that this one had given it up.
	readmitTime = time.Second
	// noForeignTime is how long a node that hears no other waits where no foreign machine ever answered.
	// Where heartbeats were lost before, a gap of two seconds may be but more of the same.
	noForeignTime = 2 * time.Second
	lossyTime     = 5 * noForeignTime
	// freshTime is how old a question may be that is answered.
	freshTime = time.Second
	// hearingTime is how long it counts that another node hears another machine.
	hearingTime = 300 * time.Millisecond
)

// wire is what is known of a silent peer by asking the wire.
type wire struct {
	askedAt, answeredAt time.Duration
	answer              WireAnswer
	// isDead: the last two answers showed that it is dead, see Answer.dead.
	isDead bool
	// nodeAnsweredAt is when the node itself answered last.
	nodeAnsweredAt time.Duration
}

// link is when the wire showed last that this node's own link works, and that it does not.
type link struct {
	worksAt, failsAt time.Duration
	// othersHearAt and othersDoNotAt are when another node said last, on another link, that it hears another machine on
	// the link of the heartbeats, and that it does not.
	othersHearAt, othersDoNotAt time.Duration
	// elsewhereFailsAt is when foreign machines on other links did not answer last.
	elsewhereFailsAt time.Duration
}

// isDivided reports whether the network of the heartbeats fails, and no single node: of the nodes that answer on another
// link, one says that it hears no machine there either, and none says that it does.
func (l link) isDivided(at time.Duration) bool {
	return l.othersDoNotAt != 0 && at-l.othersDoNotAt < complaintTime && !l.othersHear(at)
}

// othersHear reports whether another node hears another machine on the link of the heartbeats.
func (l link) othersHear(at time.Duration) bool {
	return l.othersHearAt != 0 && at-l.othersHearAt < hearingTime
}

// pathFails reports whether no speaker hears another one, as far as this node can tell.
func (d *Detector) pathFails(at time.Duration) bool { return d.alone(at) && d.link.isDivided(at) }

// fails: the last that the wire showed is that the link does not work. Speakers may be heard all the same: speakers of the
// same half.
func (l link) fails() bool { return l.failsAt > l.worksAt }

// linkFails reports whether the wire showed that this node's own link does not work, and nothing since that it does:
// foreign machines that are silent for long are forgotten, and that they were there is not.
func (d *Detector) linkFails() bool {
	return d.link.failsAt > max(d.link.worksAt, d.lastHeard())
}

// lastHeard returns when this node heard any other speaker last.
func (d *Detector) lastHeard() (last time.Duration) {
	for _, p := range d.ring {
		last = max(last, p.lastHeard)
	}
	return last
}

// pending: an answer may yet come in time.
func (w *wire) pending(at time.Duration) bool {
	return w.askedAt > w.answeredAt && at < w.askedAt+wireTime
}

// refuses: the last sign of it is a refusal, by its kernel or by a firewall.
func (p *peerState) refuses() bool { return p.refusedAt > max(p.lastHeard, p.wire.nodeAnsweredAt) }

// answersOnWire: its heartbeats are lost, and it answers on the wire.
func (p *peerState) answersOnWire() bool { return p.wire.nodeAnsweredAt > p.lastHeard }

// answeredLately: whatever keeps its heartbeats away, or did until now, frames of it arrive.
func (p *peerState) answeredLately(at time.Duration) bool {
	return p.wire.nodeAnsweredAt != 0 && at-p.wire.nodeAnsweredAt < complaintTime
}

// wireAt is when the wire is to be asked about p next, so that the answer is there when it is wanted.
func (d *Detector) wireAt(p *peerState) time.Duration {
	if p.answersOnWire() {
		return p.wire.askedAt + wireInterval
	}
	interval := wireInterval
	if s := p.suspicion; s != nil && p.wire.askedAt-s.at > soonTime {
		interval = slowAskInterval
	}
	return max(p.lastAlive+d.patience(p)-wireTime, p.wire.askedAt+interval)
}

// askWire has the wire asked about a peer.
func (d *Detector) askWire(at time.Duration, p *peerState) {
	p.wire.askedAt = at
	d.questions = append(d.questions, WireQuestion{p.name, at})
}

// WireQuestion is about a named peer, asked at a time of CLOCK_BOOTTIME.
type WireQuestion struct {
	Name string
	At   time.Duration
}

// ReceiveAnswer takes the wire's answer about a peer. A late one shows nothing about the present.
func (d *Detector) ReceiveAnswer(at time.Duration, q WireQuestion, a WireAnswer) {
	p := d.peers[NodeIDOf(q.Name)]
	if p == nil || at-q.At > freshTime || q.At < d.born {
		return
	}
	wasDead := p.wire.answer.dead() && at-p.wire.answeredAt < complaintTime
	p.wire.isDead = wasDead && a.dead()
	p.wire.answer, p.wire.answeredAt = a, at
	switch {
	case a.Node == Answered || a.Foreign == Answered:
		d.link.worksAt = at
	case a.Foreign == Unanswered:
		d.link.failsAt = at
	}
	if a.ForeignElsewhere == Unanswered {
		d.link.elsewhereFailsAt = at
	}
	switch {
	case a.Elsewhere != Answered:
	case a.Hears:
		// Where all heartbeats stop at once, the other node may not have noticed that yet.
		if q.At > d.lastHeard()+d.hold+2*d.timers.Interval {
			d.link.othersHearAt = at
		}
	case a.HearsNone:
		d.link.othersDoNotAt = at
	}
	if a.Node != Answered && !(d.alone(at) && a.livesElsewhere()) {
		return
	}
	p.wire.nodeAnsweredAt, p.lastAlive = at, at
	d.clear(at, p)
	if p.accused {
		d.acquit(at, p)
	}
}

// acquit takes back a verdict about a node that still answers for its addresses. It does not hear this node: otherwise
// it would have refuted the verdict itself.
func (d *Detector) acquit(at time.Duration, p *peerState) {
	p.accused, p.watched = false, true
	if p.private {
		d.withdrawVerdict(at, p)
		return
	}
	if p.Status == Dead {
		p.Deaths = min(p.Deaths, p.former.Deaths) // a wrong verdict does not count
	}
	p.Status, p.claimedAt = Alive, at
	p.Incarnation = next(p.Incarnation)
	d.version++
	d.broadcast(p.id)
}

// readmit takes a peer back that this node alone had given up. Where there is no third node, the peer gets the time to
// learn that, so that it does not take back what it loses in the next moment.
func (d *Detector) readmit(at time.Duration, p *peerState) {
	if p.backAt == 0 {
		p.backAt = at
	}
	if able, _ := d.heard(at); able > 1 || at-p.backAt >= readmitTime {
		d.withdrawVerdict(at, p)
		return
	}
	d.send(p, Packet{}) // which says that this node had given it up
}

// withdrawVerdict ends a verdict of this node alone.
func (d *Detector) withdrawVerdict(at time.Duration, p *peerState) {
	p.accused = false
	p.set(at, p.former, false)
	d.version++
}

// heard returns how many peers are heard at this moment that hear well, and so are able to judge, and how many in all.
func (d *Detector) heard(at time.Duration) (able, all int) {
	for _, p := range d.ring {
		if p.lastHeard == 0 || at-p.lastHeard >= p.hold {
			continue
		}
		if all++; !p.hearsBadly {
			able++
		}
	}
	return able, all
}

// decidesAlone reports whether a suspect is dead where no other speaker is heard. Either all others are dead, or this
// node is cut off: a foreign machine that answers shows that its link works.
func (d *Detector) decidesAlone(at time.Duration, p *peerState) bool {
	answer := p.wire.answer
	if p.wire.answeredAt < p.lastHeard {
		answer = WireAnswer{}
	}
	lossy := p.reception.clean < cleanRun
	// If heartbeats of it, or foreign answers, were lost before, this may be more of the same.
	isSteady := func(failsAt time.Duration) bool {
		return !(lossy && at-p.lastHeard < noForeignTime) && (failsAt == 0 || at-failsAt > noForeignTime)
	}
	if answer.dead() && p.wire.isDead && isSteady(d.link.elsewhereFailsAt) {
		return true
	}
	switch answer.Foreign {
	case Answered:
		if p.Status == SpeakerDown && at < p.suspicion.at+noForeignTime {
			return false // refusals are so rare that nothing else shows whether some are lost
		}
		return isSteady(d.link.failsAt)
	case Unanswered:
		return false
	}
	if d.linkFails() || d.link.isDivided(at) {
		return false
	}
	wait := noForeignTime
	if lossy {
		wait = lossyTime
	}
	return !p.gossip && at >= p.suspicion.at+wait
}
