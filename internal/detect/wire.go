package detect

import "time"

// WireReply is the result of questions to one machine, or to several, on the wire.
type WireReply uint8

const (
	// NotAsked means that there was no machine to ask.
	NotAsked WireReply = iota
	// Unanswered means that fewer than two of three questions were answered.
	Unanswered
	// Answered means that at least two of three questions were.
	Answered
)

// WireQuestion asks for a WireAnswer about a named peer.
type WireQuestion struct {
	Name string
	// At is the time of the question, by the Detector's clock.
	At time.Duration
}

// WireAnswer is what the wire shows about a node whose heartbeats are missing.
type WireAnswer struct {
	// Node is the node itself, asked about an address that it announces.
	Node WireReply
	// Foreign are machines that are no speakers and answered before. They show whether this node's own link works.
	Foreign WireReply
	// Elsewhere is the node's speaker, asked on the other links that both nodes share. It is NotAsked where the link
	// of the heartbeats is not shared, or where the speaker never answered on another one.
	Elsewhere WireReply
	// Hears reports whether the speaker, asked there, hears another speaker or a foreign machine on the link of the
	// heartbeats. HearsNone reports whether it does not. An older speaker reports neither.
	Hears, HearsNone bool
	// ForeignElsewhere are foreign machines on those other links.
	ForeignElsewhere WireReply
}

// showsFaulty reports whether the answer shows, to a node that hears no other speaker, that the peer is alive and its
// link of the heartbeats is faulty: a foreign machine there answers the asking node, and the peer hears none. If both
// hear one, the network isolates the two from each other, and neither is faulty.
func (a WireAnswer) showsFaulty() bool {
	return a.Elsewhere == Answered && a.Foreign == Answered && !a.Hears
}

// showsDead reports whether the answer shows that the peer is dead although this node's link of the heartbeats does
// not work: another link works, and the peer does not answer there.
func (a WireAnswer) showsDead() bool {
	return a.Elsewhere == Unanswered && a.ForeignElsewhere == Answered
}

const (
	// wireTime is how long an answer of the wire may take: three questions in 30 ms, and the way back to the
	// detector.
	wireTime = 40 * time.Millisecond
	// wireInterval is the time between questions about a node that stays silent. A node that answers them keeps what
	// it has, and is given up after three questions without an answer.
	wireInterval = 100 * time.Millisecond
	wirePatience = 3 * wireInterval
	// minDeadAnswers is how many answers in a row must show that a node is dead which is asked on another link only.
	// Its speaker answers there without real-time priority: on a busy node it is late by up to 287 ms (ordinaryFactor).
	minDeadAnswers = 4
	// slowWireInterval is the time between questions about a node that this one declared dead.
	slowWireInterval = time.Second
	// maxQuestionAge is how old a question may be when its answer counts.
	maxQuestionAge = time.Second

	// readmitTime is how long a node has to react to the news that this one had given it up.
	readmitTime = time.Second
	// noForeignTime is how long a node that hears no other waits where no foreign machine ever answered. Where
	// heartbeats were lost before, a gap of two seconds may be more of the same: there it waits for lossyTime.
	noForeignTime = 2 * time.Second
	lossyTime     = 5 * noForeignTime
	// hearingTime is how long it counts that another node hears another machine.
	hearingTime = 300 * time.Millisecond
)

// wireEvidence is what the wire showed about one peer.
type wireEvidence struct {
	askedAt, answeredAt time.Duration
	answer              WireAnswer
	// deadAnswers counts the last answers in a row that showed that the peer is dead: see WireAnswer.showsDead.
	deadAnswers int
	// isFaulty reports whether the last two answers showed that the peer is faulty: see WireAnswer.showsFaulty. By the
	// first, the peer may not have asked a foreign machine yet.
	isFaulty bool
	// nodeAnsweredAt is when the node itself last answered.
	nodeAnsweredAt time.Duration
}

// isPending reports whether an answer may yet come in time.
func (w *wireEvidence) isPending(at time.Duration) bool {
	return w.askedAt > w.answeredAt && at < w.askedAt+wireTime
}

// linkEvidence is what the wire showed about this node's own link of the heartbeats.
type linkEvidence struct {
	// worksAt is when the wire last showed that the link works, and failsAt that it does not.
	worksAt, failsAt time.Duration
	// othersHearAt is when another node last said, on another link, that it hears another machine on the link of the
	// heartbeats. othersDoNotAt is when one last said that it does not.
	othersHearAt, othersDoNotAt time.Duration
	// elsewhereFailsAt is when foreign machines on other links last did not answer.
	elsewhereFailsAt time.Duration
}

// hasFailed reports whether the last evidence is that the link does not work. Speakers in the same half of a divided
// network may be heard all the same.
func (l linkEvidence) hasFailed() bool { return l.failsAt > l.worksAt }

// othersHear reports whether another node hears another machine on the link of the heartbeats.
func (l linkEvidence) othersHear(at time.Duration) bool {
	return l.othersHearAt != 0 && at-l.othersHearAt < hearingTime
}

// isDivided reports whether the network of the heartbeats fails, rather than a single node: of the nodes that answer
// on another link, one says that it hears no machine there either, and none says that it does.
func (l linkEvidence) isDivided(at time.Duration) bool {
	return l.othersDoNotAt != 0 && at-l.othersDoNotAt < complaintTime && !l.othersHear(at)
}

// linkFails reports whether the wire showed that this node's own link does not work, and nothing since showed that it
// does. A foreign machine that is silent for long is forgotten, but not that it was there.
func (d *Detector) linkFails() bool {
	return d.link.failsAt > max(d.link.worksAt, d.lastHeard())
}

// pathFails reports whether no speaker hears another one, as far as this node can tell.
func (d *Detector) pathFails(at time.Duration) bool { return d.isAlone(at) && d.link.isDivided(at) }

// isRefusing reports whether the last sign of the peer is a refusal, by its kernel or by a firewall that did not refuse
// while the peer was heard.
func (p *peerState) isRefusing() bool {
	isRejected := p.rejectedAt != 0 && p.refusedAt-p.rejectedAt < rejectedTime

	return !isRejected && p.refusedAt > max(p.lastHeard, p.wire.nodeAnsweredAt)
}

// answersOnWire reports whether the peer answers on the wire while its heartbeats are lost.
func (p *peerState) answersOnWire() bool { return p.wire.nodeAnsweredAt > p.lastHeard }

// answeredRecently reports whether frames of the peer arrive, or did until a moment ago, whatever keeps its
// heartbeats away.
func (p *peerState) answeredRecently(at time.Duration) bool {
	return p.wire.nodeAnsweredAt != 0 && at-p.wire.nodeAnsweredAt < complaintTime
}

// nextWireQuestion returns when to ask the wire about a peer, so that the answer is there when it is needed.
func (d *Detector) nextWireQuestion(p *peerState) time.Duration {
	if p.wire.answer.showsFaulty() && !p.wire.isFaulty && p.lastHeard < p.wire.answeredAt {
		return p.wire.askedAt + wireTime // its second answer decides
	}
	if p.answersOnWire() {
		return p.wire.askedAt + wireInterval
	}

	interval := wireInterval
	if p.suspicion != nil && p.wire.askedAt-p.suspicion.startedAt > urgentTime {
		interval = slowQueryInterval
	}

	return max(p.lastAlive+d.patience(p)-wireTime, p.wire.askedAt+interval)
}

// askWire has the wire asked about a peer.
func (d *Detector) askWire(at time.Duration, p *peerState) {
	p.wire.askedAt = at
	d.questions = append(d.questions, WireQuestion{p.name, at})
}

// ReceiveAnswer takes the wire's answer about a peer. A late answer shows nothing about the present.
func (d *Detector) ReceiveAnswer(at time.Duration, q WireQuestion, a WireAnswer) {
	p := d.peers[NodeIDOf(q.Name)]
	if p == nil || at-q.At > maxQuestionAge || q.At < d.startedAt {
		return
	}

	age := at - p.wire.answeredAt
	if age >= complaintTime || !a.showsDead() {
		p.wire.deadAnswers = 0
	}
	if a.showsDead() {
		p.wire.deadAnswers++
	}
	p.wire.isFaulty = age < 2*slowWireInterval && p.wire.answer.showsFaulty() && a.showsFaulty()
	p.wire.answer, p.wire.answeredAt = a, at
	d.noteLinkEvidence(at, q, a)

	isAliveElsewhere := a.Elsewhere == Answered && !a.showsFaulty()
	if a.Node != Answered && !(d.isAlone(at) && isAliveElsewhere) {
		return
	}
	p.wire.nodeAnsweredAt, p.lastAlive = at, at
	d.clearSuspicion(at, p)
	if p.accused {
		d.revokeVerdict(at, p)
	}
}

// noteLinkEvidence takes what an answer shows about this node's own link.
func (d *Detector) noteLinkEvidence(at time.Duration, q WireQuestion, a WireAnswer) {
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
}

// revokeVerdict revokes a verdict about a node that still answers for its addresses. The node does not hear this one,
// or it would have refuted the verdict itself.
func (d *Detector) revokeVerdict(at time.Duration, p *peerState) {
	p.accused, p.watched = false, true
	if p.private {
		d.withdrawPrivateVerdict(at, p)
		return
	}

	if p.Status == Dead {
		p.Deaths = min(p.Deaths, p.former.Deaths) // a wrong verdict does not count
	}
	p.Status, p.claimedAt = Alive, at
	p.Incarnation = nextIncarnation(p.Incarnation)
	d.version++
	d.broadcast(p.id)
}

// readmit readmits a peer that this node alone had given up. Where there is no third node, the peer first gets the
// time to learn about that, so that it does not take back what it loses a moment later.
func (d *Detector) readmit(at time.Duration, p *peerState) {
	if p.backAt == 0 {
		p.backAt = at
	}
	able, _ := d.countHeard(at)
	if able > 1 || at-p.backAt >= readmitTime {
		d.withdrawPrivateVerdict(at, p)
		return
	}
	d.send(p, Packet{}) // it carries privateDeath
}

// withdrawPrivateVerdict ends a verdict of this node alone.
func (d *Detector) withdrawPrivateVerdict(at time.Duration, p *peerState) {
	p.accused = false
	p.set(at, p.former, false)
	d.version++
}

// confirmsAlone reports whether a suspect is dead, to a node that hears no other speaker. Either all others are dead,
// or this node is cut off: a foreign machine that answers shows that this node's link works.
func (d *Detector) confirmsAlone(at time.Duration, p *peerState) bool {
	answer := p.wire.answer
	if p.wire.answeredAt < p.lastHeard {
		answer = WireAnswer{}
	}

	// Where the peer's heartbeats, or foreign answers, were lost before, this silence may be more of the same.
	isLossy := p.reception.clean < cleanRun
	isSteady := func(failsAt time.Duration) bool {
		mayBeLoss := isLossy && at-p.lastHeard < noForeignTime
		return !mayBeLoss && (failsAt == 0 || at-failsAt > noForeignTime)
	}
	if answer.showsDead() && p.wire.deadAnswers >= minDeadAnswers && isSteady(d.link.elsewhereFailsAt) {
		return true
	}

	switch answer.Foreign {
	case Answered:
		if p.Status == SpeakerDown && at < p.suspicion.startedAt+noForeignTime {
			return false // refusals are so rare that nothing else shows whether some are lost
		}
		if answer.Elsewhere == Answered && !p.wire.isFaulty {
			return false
		}
		return isSteady(d.link.failsAt)
	case Unanswered:
		return false
	}

	if d.linkFails() || d.link.isDivided(at) {
		return false
	}
	wait := noForeignTime
	if isLossy {
		wait = lossyTime
	}

	return !p.gossip && at >= p.suspicion.startedAt+wait
}
