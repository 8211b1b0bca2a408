package detect

import "time"

const (
	// accusers is how many nodes must miss a node, where there are as many.
	accusers = 2
	// confirmTime is how long the other watchers have for a veto once one agreed, askInterval is the time between
	// questions, and minConfirmTime lets a refusal by the kernel arrive. No question falls into the moment of a
	// verdict: with 25 ms for both, 17 of 2,124 networks of four nodes lost a node that lived.
	confirmTime    = 25 * time.Millisecond
	askInterval    = 15 * time.Millisecond
	minConfirmTime = 5 * time.Millisecond
	// soonTime is how long a suspicion is pursued that often, before only each slowAskInterval.
	soonTime        = time.Second
	slowAskInterval = 250 * time.Millisecond
	// maxGrace is for how long on end a watcher that runs too seldom puts its verdicts off.
	maxGrace = time.Second
	// maxAsked is how many other watchers are asked.
	maxAsked = 4
	// slackTime is how long a peer is given more time than it asked for.
	slackTime = time.Minute
	// refusalTime is how long a refusal shows that the node is up. Kernels send one a second (Linux, icmp_ratelimit):
	// one may be lost.
	refusalTime = 2500 * time.Millisecond
	// pingInterval is the time between packets that a node whose speaker is down may refuse.
	pingInterval = 250 * time.Millisecond
)

// suspicion is one watcher's doubt about one node. It is private until another node shares it.
type suspicion struct {
	at, askedAt time.Duration
	// hearsay: this node knew from others alone that the suspect lived.
	hearsay bool
	// lookedAt is when it was considered last.
	lookedAt time.Duration
	// asked holds the other nodes that were asked and what they answered; 0 is nothing yet.
	asked map[NodeID]Status
}

// confirmAt is until when the other watchers have for a veto. One who has its knowledge from others gives them the time
// for two answers more: they doubt at the same moment, and the next one who heard the suspect may be asked by one of
// them alone.
func (s *suspicion) confirmAt() time.Duration {
	if s.hearsay {
		return s.at + 2*confirmTime
	}
	return s.at + confirmTime
}

// count returns how many gave an answer.
func (s *suspicion) count(answer Status) (n int) {
	for _, a := range s.asked {
		if a == answer {
			n++
		}
	}
	return n
}

// patience is how long there may be no sign of life of a peer.
func (d *Detector) patience(p *peerState) time.Duration {
	switch {
	case p.Status == SpeakerDown:
		return refusalTime
	case p.answersOnWire():
		return wirePatience
	case p.refuses():
		return 3 * d.timers.Interval
	}
	return p.hold + p.slack
}

// checkAt returns when check has something to do for p; 0 is never.
func (d *Detector) checkAt(p *peerState) time.Duration {
	switch s := p.suspicion; {
	case p.accused && p.Status == Dead:
		return p.wire.askedAt + slowWireInterval
	case !p.watched || p.Status > SpeakerDown:
		return 0
	case p.Status == SpeakerDown && s == nil:
		return min(p.pingedAt+pingInterval, d.wireAt(p))
	case s == nil:
		return min(p.lastAlive+d.patience(p), d.wireAt(p))
	default:
		return min(s.next(p.wire.askedAt), d.wireAt(p))
	}
}

// next is when a suspicion is to be considered again, if no answer comes before.
func (s *suspicion) next(wireAsked time.Duration) time.Duration {
	next := s.askedAt + s.pause()
	for _, at := range [...]time.Duration{s.at + minConfirmTime, s.confirmAt(), wireAsked + wireTime} {
		if at > s.lookedAt {
			next = min(next, at)
		}
	}
	return next
}

// pause is the time between questions to the others.
func (s *suspicion) pause() time.Duration {
	if s.askedAt-s.at > soonTime {
		return slowAskInterval
	}
	return askInterval
}

// check does what is due for one peer that sends heartbeats to this node.
func (d *Detector) check(at time.Duration, p *peerState) {
	if at > p.slackUntil {
		p.slack = 0
	}
	if p.accused && at >= p.wire.askedAt+slowWireInterval {
		d.askWire(at, p)
	}
	if !p.watched || p.Status > SpeakerDown || at < d.grace.until {
		return
	}
	switch {
	case p.Status == SpeakerDown && at-p.claimedAt > SpeakerDownTime && !p.wire.pending(at):
		d.declare(at, p, Dead, false)
		return
	case p.Status == SpeakerDown && at >= p.pingedAt+pingInterval:
		p.pingedAt = at
		d.send(p, Packet{Ping: true})
	}
	if at >= p.lastAlive+d.patience(p) {
		if p.suspicion == nil {
			d.stats.Suspected++
			d.version++
			p.suspicion = &suspicion{at: at, asked: map[NodeID]Status{}, hearsay: p.lastAlive > p.lastHeard}
		}
		d.pursue(at, p)
	}
	// After the verdict, which may rest on the last answer: on a slow machine the next one never comes in time.
	if p.watched && at >= d.wireAt(p) {
		d.askWire(at, p)
	}
}

// pursue asks about a suspect, and decides as soon as enough is known.
func (d *Detector) pursue(at time.Duration, p *peerState) {
	s := p.suspicion
	s.lookedAt = at
	if s.askedAt == 0 || at >= s.askedAt+s.pause() {
		d.askAbout(at, p)
	}
	switch {
	case p.wire.pending(at) || at < s.at+minConfirmTime:
	case p.refuses() && p.Status != SpeakerDown:
		if p.wire.askedAt > p.lastAlive {
			d.declare(at, p, SpeakerDown, false)
		}
	case d.alone(at):
		if d.decidesAlone(at, p) {
			d.declare(at, p, Dead, true)
		}
	case s.shared(at) && d.hearsWell(at):
		d.declare(at, p, Dead, false)
	}
}

// askAbout asks the suspect itself and its other watchers.
func (d *Detector) askAbout(at time.Duration, p *peerState) {
	s := p.suspicion
	s.askedAt = at
	d.send(p, Packet{Ping: true})
	n := 0
	d.successors(p.id, func(o *peerState) bool {
		if o.suspicion != nil || !d.status(at, o).Living() {
			return true
		}
		if _, known := s.asked[o.id]; !known {
			s.asked[o.id] = Unknown
		}
		d.send(o, Packet{Claims: []NodeClaim{{About: p.id, Status: ask}}})
		n++
		return n < maxAsked
	})
	for i := range s.asked {
		if o := d.peers[i]; o == nil || o.suspicion != nil || !d.status(at, o).Living() {
			delete(s.asked, i) // fell silent too
		}
	}
}

// shared reports whether another node that hears well misses the suspect too. If all that are left, or after a while
// two of them, answer that they do not watch it, its watchers died with it: the answers show that this node is heard
// and hears.
func (s *suspicion) shared(at time.Duration) bool {
	switch agreed := s.count(silent); {
	case agreed > 0 && agreed == len(s.asked) && !s.hearsay:
		return true
	case agreed > 0:
		return at >= s.confirmAt()
	}
	n := s.count(unwatched)
	return n > 0 && n == len(s.asked) && at >= s.at+confirmTime || n >= accusers && at >= s.at+soonTime
}

// answerAbout answers a watcher that does not hear a peer.
func (d *Detector) answerAbout(at time.Duration, to, about *peerState) {
	age := at - about.lastAlive
	// What this node knows from others, from the wire, or from refusals, holds until it doubts that itself: a node
	// that is heard here or there in turns is not dead.
	fresh := about.lastAlive != 0 && age <= about.hold*3/4 ||
		about.lastAlive > about.lastHeard && about.suspicion == nil && age <= d.patience(about)-about.slack
	// Rounded up: no news gets fresher by being passed on.
	c := NodeClaim{About: about.id, Status: heard, Incarnation: uint32((age + time.Millisecond - 1).Milliseconds())}
	if !fresh {
		if !d.hearsWell(at) {
			return
		}
		if c = (NodeClaim{About: about.id, Status: unwatched}); about.watched {
			c.Status = silent
		}
	}
	d.send(to, Packet{Claims: []NodeClaim{c}})
}

// answered takes what another node knows of a suspect.
func (d *Detector) answered(at time.Duration, from, about *peerState, c NodeClaim) {
	s := about.suspicion
	if s == nil {
		return
	}
	if c.Status != heard {
		if _, asked := s.asked[from.id]; asked {
			s.asked[from.id] = c.Status
		}
		return
	}
	// No news is fresher than where it was heard: the age is rounded up, and counts from the question.
	if heardAt := s.askedAt - time.Duration(c.Incarnation)*time.Millisecond; heardAt > about.lastAlive {
		about.lastAlive = heardAt
		d.clear(at, about)
	}
}

// clear ends the suspicion of a peer that turned out to be alive.
func (d *Detector) clear(at time.Duration, p *peerState) {
	if p.suspicion == nil {
		return
	}
	p.suspicion = nil
	d.version++
	d.stats.Cleared++
	p.slack = min(max(p.slack, 2*d.timers.Interval), p.hold)
	p.slackUntil = max(p.slackUntil, at+slackTime)
}

// declare ends a suspicion by a verdict: for this node alone, or for everybody.
func (d *Detector) declare(at time.Duration, p *peerState, status Status, private bool) {
	c := p.NodeClaim
	c.Status = status
	if status == Dead {
		d.stats.Confirmed++
		c.Deaths = p.died()
	}
	p.suspicion = nil
	p.watched, p.accused = status == SpeakerDown, true
	p.former = p.NodeClaim
	p.set(at, c, private)
	if status == SpeakerDown {
		p.lastAlive = p.refusedAt
	}
	d.version++
	if !private {
		d.broadcast(p.id)
	}
}
