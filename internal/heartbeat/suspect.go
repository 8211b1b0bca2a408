package heartbeat

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
	asked map[id]Status
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
func (d *detector) patience(p *peer) time.Duration {
	switch {
	case p.status == SpeakerDown:
		return refusalTime
	case p.answersOnWire():
		return wirePatience
	case p.refuses():
		return 3 * d.Interval
	}
	return p.hold + p.slack
}

// checkAt returns when check has something to do for p; 0 is never.
func (d *detector) checkAt(p *peer) time.Duration {
	switch s := p.suspicion; {
	case p.accused && p.status == Dead:
		return p.wire.askedAt + slowWireInterval
	case !p.watched || p.status > SpeakerDown:
		return 0
	case p.status == SpeakerDown && s == nil:
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
func (d *detector) check(now time.Duration, p *peer) {
	if now > p.slackUntil {
		p.slack = 0
	}
	if p.accused && now >= p.wire.askedAt+slowWireInterval {
		d.askWire(now, p)
	}
	if !p.watched || p.status > SpeakerDown || now < d.grace.until {
		return
	}
	switch {
	case p.status == SpeakerDown && now-p.claimedAt > speakerDownTime && !p.wire.pending(now):
		d.declare(now, p, Dead, false)
		return
	case p.status == SpeakerDown && now >= p.pingedAt+pingInterval:
		p.pingedAt = now
		d.send(p, packet{ping: true})
	}
	if now >= p.lastAlive+d.patience(p) {
		if p.suspicion == nil {
			d.counts.suspected.Add(1)
			d.version++
			p.suspicion = &suspicion{at: now, asked: map[id]Status{}, hearsay: p.lastAlive > p.lastHeard}
		}
		d.pursue(now, p)
	}
	// After the verdict, which may rest on the last answer: on a slow machine the next one never comes in time.
	if p.watched && now >= d.wireAt(p) {
		d.askWire(now, p)
	}
}

// pursue asks about a suspect, and decides as soon as enough is known.
func (d *detector) pursue(now time.Duration, p *peer) {
	s := p.suspicion
	s.lookedAt = now
	if s.askedAt == 0 || now >= s.askedAt+s.pause() {
		d.askAbout(now, p)
	}
	switch {
	case p.wire.pending(now) || now < s.at+minConfirmTime:
	case p.refuses() && p.status != SpeakerDown:
		if p.wire.askedAt > p.lastAlive {
			d.declare(now, p, SpeakerDown, false)
		}
	case d.alone(now):
		if d.decidesAlone(now, p) {
			d.declare(now, p, Dead, true)
		}
	case s.shared(now) && d.hearsWell(now):
		d.declare(now, p, Dead, false)
	}
}

// askAbout asks the suspect itself and its other watchers.
func (d *detector) askAbout(now time.Duration, p *peer) {
	s := p.suspicion
	s.askedAt = now
	d.send(p, packet{ping: true})
	n := 0
	d.successors(p.id, func(o *peer) bool {
		if o.suspicion != nil || !d.status(now, o).Living() {
			return true
		}
		if _, known := s.asked[o.id]; !known {
			s.asked[o.id] = Unknown
		}
		d.send(o, packet{claims: []claim{{about: p.id, status: ask}}})
		n++
		return n < maxAsked
	})
	for i := range s.asked {
		if o := d.peers[i]; o == nil || o.suspicion != nil || !d.status(now, o).Living() {
			delete(s.asked, i) // fell silent too
		}
	}
}

// shared reports whether another node that hears well misses the suspect too. If all that are left, or after a while
// two of them, answer that they do not watch it, its watchers died with it: the answers show that this node is heard
// and hears.
func (s *suspicion) shared(now time.Duration) bool {
	switch agreed := s.count(silent); {
	case agreed > 0 && agreed == len(s.asked) && !s.hearsay:
		return true
	case agreed > 0:
		return now >= s.confirmAt()
	}
	n := s.count(unwatched)
	return n > 0 && n == len(s.asked) && now >= s.at+confirmTime || n >= accusers && now >= s.at+soonTime
}

// answerAbout answers a watcher that does not hear a peer.
func (d *detector) answerAbout(now time.Duration, to, about *peer) {
	age := now - about.lastAlive
	// What this node knows from others, from the wire, or from refusals, holds until it doubts that itself: a node
	// that is heard here or there in turns is not dead.
	fresh := about.lastAlive != 0 && age <= about.hold*3/4 ||
		about.lastAlive > about.lastHeard && about.suspicion == nil && age <= d.patience(about)-about.slack
	// Rounded up: no news gets fresher by being passed on.
	c := claim{about: about.id, status: heard, incarnation: uint32((age + time.Millisecond - 1).Milliseconds())}
	if !fresh {
		if !d.hearsWell(now) {
			return
		}
		if c = (claim{about: about.id, status: unwatched}); about.watched {
			c.status = silent
		}
	}
	d.send(to, packet{claims: []claim{c}})
}

// answered takes what another node knows of a suspect.
func (d *detector) answered(now time.Duration, from, about *peer, c claim) {
	s := about.suspicion
	if s == nil {
		return
	}
	if c.status != heard {
		if _, was := s.asked[from.id]; was {
			s.asked[from.id] = c.status
		}
		return
	}
	// No news is fresher than where it was heard: the age is rounded up, and counts from the question.
	if at := s.askedAt - time.Duration(c.incarnation)*time.Millisecond; at > about.lastAlive {
		about.lastAlive = at
		d.clear(now, about)
	}
}

// clear ends the suspicion of a peer that turned out to be alive.
func (d *detector) clear(now time.Duration, p *peer) {
	if p.suspicion == nil {
		return
	}
	p.suspicion = nil
	d.version++
	d.counts.cleared.Add(1)
	p.slack = min(max(p.slack, 2*d.Interval), p.hold)
	p.slackUntil = max(p.slackUntil, now+slackTime)
}

// declare ends a suspicion by a verdict: for this node alone, or for everybody.
func (d *detector) declare(now time.Duration, p *peer, status Status, private bool) {
	c := p.claim
	c.status = status
	if status == Dead {
		d.counts.confirmed.Add(1)
		c.deaths = p.died()
	}
	p.suspicion = nil
	p.watched, p.accused = status == SpeakerDown, true
	p.former = p.claim
	p.set(now, c, private)
	if status == SpeakerDown {
		p.lastAlive = p.refusedAt
	}
	d.version++
	if !private {
		d.broadcast(p.id)
	}
}
