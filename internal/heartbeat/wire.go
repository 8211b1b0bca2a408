package heartbeat

import "time"

// Reply is what came of questions on the wire.
type Reply uint8

const (
	// NotAsked: there was nobody to ask.
	NotAsked Reply = iota
	// Silent: those who were asked did not answer two of three questions.
	Silent
	// Answered two of three questions at least.
	Answered
)

// Answer is what the wire shows about a node whose heartbeats are missed.
type Answer struct {
	// Node is the node itself, asked for an address that it announces.
	Node Reply
	// Foreign are machines that are no speakers and answered before: they show whether this node's own
	// link works.
	Foreign Reply
	// Elsewhere is the speaker of the node, asked on the other links that both share; NotAsked where the link of the
	// heartbeats is not shared, or where it never answered there.
	Elsewhere Reply
	// Hears: asked there, it said that it hears another speaker, or a foreign machine, on the link of the heartbeats.
	// HearsNone: it said that it does not. An older speaker says neither.
	Hears, HearsNone bool
	// ForeignElsewhere are foreign machines on those links.
	ForeignElsewhere Reply
}

// livesElsewhere reports whether the answer shows, to a node that hears no other speaker, that this one lives and is
// not at fault. It is at fault where a foreign machine on the link of the heartbeats answers the asking node.
func (a Answer) livesElsewhere() bool { return a.Elsewhere == Answered && a.Foreign != Answered }

// dead reports whether the answer shows that the node is dead though this node's link of the heartbeats does not work:
// another link does, and the node does not answer there.
func (a Answer) dead() bool { return a.Elsewhere == Silent && a.ForeignElsewhere == Answered }

const (
	// wireTime is what an answer of the wire may take: three questions in 30 ms, and the way back to the detector.
	wireTime = 40 * time.Millisecond
	// wireInterval is the time between questions about a node that stays silent. One that answers them keeps what
	// it has, and is given up after three without an answer.
	wireInterval = 100 * time.Millisecond
	wirePatience = 3 * wireInterval
	// slowWireInterval is the time between questions about a node that this one declared dead.
	slowWireInterval = time.Second
	// readmitTime is how long a node has to react to the news that this one had given it up.
	readmitTime = time.Second
	// noForeignTime is how long a node that hears nobody waits where no foreign machine ever answered.
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
	answer              Answer
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
func (l link) isDivided(now time.Duration) bool {
	return l.othersDoNotAt != 0 && now-l.othersDoNotAt < complaintTime && !l.othersHear(now)
}

// othersHear reports whether another node hears another machine on the link of the heartbeats.
func (l link) othersHear(now time.Duration) bool {
	return l.othersHearAt != 0 && now-l.othersHearAt < hearingTime
}

// pathFails reports whether no speaker hears another one, as far as this node can tell.
func (d *detector) pathFails(now time.Duration) bool { return d.alone(now) && d.link.isDivided(now) }

// fails: the last that the wire showed is that the link does not work. Speakers may be heard all the same: those of the
// same half.
func (l link) fails() bool { return l.failsAt > l.worksAt }

// linkFails reports whether the wire showed that this node's own link does not work, and nothing since that it does:
// foreign machines that are silent for long are forgotten, and that they were there is not.
func (d *detector) linkFails() bool {
	return d.link.failsAt > max(d.link.worksAt, d.lastHeard())
}

// lastHeard returns when this node heard any other speaker last.
func (d *detector) lastHeard() (last time.Duration) {
	for _, p := range d.ring {
		last = max(last, p.lastHeard)
	}
	return last
}

// pending: an answer may yet come in time.
func (w *wire) pending(now time.Duration) bool {
	return w.askedAt > w.answeredAt && now < w.askedAt+wireTime
}

// refuses: the last sign of it is a refusal, by its kernel or by a firewall.
func (p *peer) refuses() bool { return p.refusedAt > max(p.lastHeard, p.wire.nodeAnsweredAt) }

// answersOnWire: its heartbeats are lost, and it answers on the wire.
func (p *peer) answersOnWire() bool { return p.wire.nodeAnsweredAt > p.lastHeard }

// answeredLately: whatever keeps its heartbeats away, or did until now, frames of it arrive.
func (p *peer) answeredLately(now time.Duration) bool {
	return p.wire.nodeAnsweredAt != 0 && now-p.wire.nodeAnsweredAt < complaintTime
}

// wireAt is when the wire is to be asked about p next, so that the answer is there when it is wanted.
func (d *detector) wireAt(p *peer) time.Duration {
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
func (d *detector) askWire(now time.Duration, p *peer) {
	p.wire.askedAt = now
	d.asks = append(d.asks, question{p.name, now})
}

// question is about a named peer, asked at a time of CLOCK_BOOTTIME.
type question struct {
	Name string
	At   time.Duration
}

// wireAnswer is the answer to a question.
type wireAnswer struct {
	Question question
	Answer   Answer
}

// answeredOnWire takes the wire's answer about a peer. A late one shows nothing about the present.
func (d *detector) answeredOnWire(now time.Duration, q question, a Answer) {
	p := d.peers[idOf(q.Name)]
	if p == nil || now-q.At > freshTime || q.At < d.born {
		return
	}
	wasDead := p.wire.answer.dead() && now-p.wire.answeredAt < complaintTime
	p.wire.isDead = wasDead && a.dead()
	p.wire.answer, p.wire.answeredAt = a, now
	switch {
	case a.Node == Answered || a.Foreign == Answered:
		d.link.worksAt = now
	case a.Foreign == Silent:
		d.link.failsAt = now
	}
	if a.ForeignElsewhere == Silent {
		d.link.elsewhereFailsAt = now
	}
	switch {
	case a.Elsewhere != Answered:
	case a.Hears:
		// Where all heartbeats stop at once, the other node may not have noticed that yet.
		if q.At > d.lastHeard()+d.hold+2*d.Interval {
			d.link.othersHearAt = now
		}
	case a.HearsNone:
		d.link.othersDoNotAt = now
	}
	if a.Node != Answered && !(d.alone(now) && a.livesElsewhere()) {
		return
	}
	p.wire.nodeAnsweredAt, p.lastAlive = now, now
	d.clear(now, p)
	if p.accused {
		d.acquit(now, p)
	}
}

// acquit takes back a verdict about a node that still answers for its addresses. It does not hear this node: otherwise
// it would have refuted the verdict itself.
func (d *detector) acquit(now time.Duration, p *peer) {
	p.accused, p.watched = false, true
	if p.private {
		d.withdrawVerdict(now, p)
		return
	}
	if p.status == Dead {
		p.deaths = min(p.deaths, p.former.deaths) // a wrong verdict does not count
	}
	p.status, p.claimedAt = Alive, now
	p.incarnation = next(p.incarnation)
	d.version++
	d.broadcast(p.id)
}

// readmit takes a peer back that this node alone had given up. Where there is no third node, the peer gets the time to
// learn that, so that it does not take back what it loses in the next moment.
func (d *detector) readmit(now time.Duration, p *peer) {
	if p.backAt == 0 {
		p.backAt = now
	}
	if able, _ := d.heard(now); able > 1 || now-p.backAt >= readmitTime {
		d.withdrawVerdict(now, p)
		return
	}
	d.send(p, packet{}) // which says that this node had given it up
}

// withdrawVerdict ends a verdict of this node alone.
func (d *detector) withdrawVerdict(now time.Duration, p *peer) {
	p.accused = false
	p.set(now, p.former, false)
	d.version++
}

// heard returns how many peers are heard at this moment that hear well, and so are able to judge, and how many in all.
func (d *detector) heard(now time.Duration) (able, all int) {
	for _, p := range d.ring {
		if p.lastHeard == 0 || now-p.lastHeard >= p.hold {
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
func (d *detector) decidesAlone(now time.Duration, p *peer) bool {
	answer := p.wire.answer
	if p.wire.answeredAt < p.lastHeard {
		answer = Answer{}
	}
	lossy := p.reception.clean < cleanRun
	// If heartbeats of it, or foreign answers, were lost before, this may be more of the same.
	isSteady := func(failsAt time.Duration) bool {
		return !(lossy && now-p.lastHeard < noForeignTime) && (failsAt == 0 || now-failsAt > noForeignTime)
	}
	if answer.dead() && p.wire.isDead && isSteady(d.link.elsewhereFailsAt) {
		return true
	}
	switch answer.Foreign {
	case Answered:
		if p.status == SpeakerDown && now < p.suspicion.at+noForeignTime {
			return false // refusals are so rare that nothing else shows whether some are lost
		}
		return isSteady(d.link.failsAt)
	case Silent:
		return false
	}
	if d.linkFails() || d.link.isDivided(now) {
		return false
	}
	wait := noForeignTime
	if lossy {
		wait = lossyTime
	}
	return !p.gossip && now >= p.suspicion.at+wait
}
