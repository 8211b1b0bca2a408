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

// Answer is what the wire says of a node whose beats are missed.
type Answer struct {
	// Node is the node itself, asked for an address that it announces.
	Node Reply
	// Foreign are machines that are no speakers and answered before: they show whether this node's own
	// link works.
	Foreign Reply
}

const (
	// wireTime is what an answer of the wire may take: three questions in 30 ms, and the way to who asks.
	wireTime = 40 * time.Millisecond
	// wireEvery is the time between questions about a node that stays silent. One that holds what it has
	// is given up after three without an answer.
	wireInterval    = 100 * time.Millisecond
	wirePatience = 3 * wireInterval
	// welcomeTime is how long a node has to answer that this one had given it up.
	readmitTime = time.Second
	// wireSlowly is the time between questions about a node that this one called dead.
	slowWireInterval = time.Second
	// strangerTime is how long a node that hears nobody waits where no foreign machine ever answered.
	// Where beats were lost before, a gap of two seconds may be but more of the same.
	noForeignTime = 2 * time.Second
	lossyTime    = 5 * noForeignTime
	// freshTime is how old a question may be that is answered.
	freshTime = time.Second
)

// wire is what is known of a silent peer by asking the wire.
type wire struct {
	askedAt, answeredAt time.Duration
	answer              Answer
	// heldAt is when it answered last itself.
	nodeAnsweredAt time.Duration
}

// pending: an answer may yet come in time.
func (w *wire) pending(now time.Duration) bool {
	return w.askedAt > w.answeredAt && now < w.askedAt+wireTime
}

// onWire: its beats are lost, and it answers on the wire.
func (p *peer) answersOnWire() bool { return p.wire.nodeAnsweredAt > p.lastHeard }

// wireAt is when the wire is to be asked about p next, so that the answer is there when it is wanted.
func (d *detector) wireAt(p *peer) time.Duration {
	if p.answersOnWire() {
		return p.wire.askedAt + wireInterval
	}
	every := wireInterval
	if s := p.suspicion; s != nil && p.wire.askedAt-s.at > soonTime {
		every = slowAskInterval
	}
	return max(p.aged+p.patience()-wireTime, p.wire.askedAt+every)
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

// answeredOnWire takes what the wire said about a peer. What comes late says nothing of the present.
func (d *detector) answeredOnWire(now time.Duration, q question, a Answer) {
	p := d.peers[idOf(q.Name)]
	if p == nil || now-q.At > freshTime || q.At < d.born {
		return
	}
	p.wire.answer, p.wire.answeredAt = a, now
	switch {
	case a.Node == Answered || a.Foreign == Answered:
		d.wireGood = now
	case a.Foreign == Silent:
		d.wireBad = now
	}
	if a.Node != Answered {
		return
	}
	p.wire.nodeAnsweredAt, p.aged = now, now
	d.clear(now, p)
	if p.accused && p.claim.status == Dead {
		d.acquit(now, p)
	}
}

// acquit takes back a verdict about a node that turned out to hold what it had. It does not hear us: else it
// would have refuted the verdict itself.
func (d *detector) acquit(now time.Duration, p *peer) {
	p.accused, p.watched = false, true
	if p.private {
		d.withdrawVerdict(now, p)
		return
	}
	p.claim.status, p.claimedAt = Alive, now
	p.claim.incarnation++
	p.claim.deaths -= min(p.claim.deaths, 1) // that of this verdict
	d.version++
	d.broadcast(p.id)
}

// welcome takes a peer back that this node alone had given up. Where there is no third, it gets the time to learn
// that, so that it does not take back what it loses in the next moment.
func (d *detector) readmit(now time.Duration, p *peer) {
	if p.backAt == 0 {
		p.backAt = now
	}
	if able, _ := d.heard(now); able > 1 || now-p.backAt >= readmitTime {
		d.withdrawVerdict(now, p)
		return
	}
	d.send(p, packet{}) // which says that it was missed
}

// takeBack ends a verdict of this node alone.
func (d *detector) withdrawVerdict(now time.Duration, p *peer) {
	p.claim, p.private, p.accused, p.claimedAt, p.backAt = p.former, false, false, now, 0
	d.version++
}

// heard returns how many peers are heard at this moment that are able to judge, since they hear well, and how many
// in all.
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

// takesAlone decides about a suspect where no other speaker is heard. Either all others are dead, or this
// node is cut off: a foreign machine that answers shows that its link works.
func (d *detector) decidesAlone(now time.Duration, p *peer) bool {
	answer := p.wire.answer
	if p.wire.answeredAt < p.lastHeard {
		answer = Answer{}
	}
	switch answer.Foreign {
	case Answered:
		// If beats of it, or foreign answers, were lost before, this may be more of the same.
		lossy := p.reception.clean < cleanRun && now-p.lastHeard < noForeignTime
		return !lossy && (d.wireBad == 0 || now-d.wireBad > noForeignTime)
	case Silent:
		return false
	}
	wait := noForeignTime
	if p.reception.clean < cleanRun {
		wait = lossyTime
	}
	return !p.gossip && now >= p.suspicion.at+wait
}
