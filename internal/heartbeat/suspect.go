package heartbeat

import "time"

const (
	// confirmTime is how long the other watchers have for a veto once one agreed, askEvery
	// is the time between questions, and leastConfirm lets a refusal by the kernel arrive.
	confirmTime  = 25 * time.Millisecond
	askEvery     = 25 * time.Millisecond
	leastConfirm = 5 * time.Millisecond
	// mostGrace is for how long on end a watcher that runs too seldom puts its verdicts off.
	mostGrace = time.Second
	// fellows is how many other watchers are asked.
	fellows = 4
	// slackTime is how long a peer is given more time than it asked for.
	slackTime = time.Minute
	// blockedSlack is added to the hold of a peer whose beats are blocked.
	blockedSlack = time.Second
	// refusalTime is how long one refusal shows that the node is up: kernels send one a
	// second (Linux, icmp_ratelimit).
	refusalTime = 2500 * time.Millisecond
	// mutePingEvery is the time between packets that a mute node may refuse.
	mutePingEvery = 250 * time.Millisecond
)

// suspicion is one watcher's doubt about one node.
type suspicion struct {
	at, askedAt time.Duration
	// asked holds the other watchers, and whether they agree.
	asked map[id]bool
}

func (s *suspicion) agreed() int {
	n := 0
	for _, agrees := range s.asked {
		if agrees {
			n++
		}
	}
	return n
}

// patience is how long a peer may be silent.
func (p *peer) patience() time.Duration { return p.hold + p.slack }

// watchAt returns when watch has something to do for p; 0 is never.
func (d *detector) watchAt(p *peer) time.Duration {
	switch s := p.suspicion; {
	case p.claim.status == Mute && p.watched:
		return p.pingedAt + mutePingEvery
	case !p.watched || p.claim.status > Held:
		return 0
	case s == nil:
		return p.aged + p.patience()
	default:
		return min(s.askedAt+askEvery, d.decideAt(p))
	}
}

// watch does what is due for one peer that beats at us.
func (d *detector) watch(now time.Duration, p *peer) {
	if now > p.slackUntil {
		p.slack = 0
	}
	if p.claim.status == Mute {
		d.watchMute(now, p)
		return
	}
	if !p.watched || p.claim.status > Held || now < d.graceUntil {
		return
	}
	if p.refusedAt > p.lastHeard && now-p.lastHeard > d.interval+d.interval/2 {
		d.declare(now, p, Mute)
		return
	}
	if p.suspicion == nil {
		if now < p.aged+p.patience() {
			return
		}
		d.counts.suspected++
		p.suspicion = &suspicion{at: now, askedAt: now - askEvery, asked: map[id]bool{}}
		d.doubts = append(d.doubts, p.name)
	}
	if now >= p.suspicion.askedAt+askEvery {
		d.askAbout(now, p)
	}
	if now >= d.decideAt(p) {
		d.declare(now, p, Dead)
	}
}

// askAbout asks the suspect itself and its other watchers.
func (d *detector) askAbout(now time.Duration, p *peer) {
	s := p.suspicion
	s.askedAt = now
	d.send(p, packet{ping: true})
	n := 0
	d.successors(p.id, func(f *peer) bool {
		if f.suspicion != nil || !d.status(now, f).Living() {
			return true
		}
		if _, known := s.asked[f.id]; !known {
			s.asked[f.id] = false
		}
		d.send(f, packet{claims: []claim{{about: p.id, status: ask}}})
		n++
		return n < fellows
	})
	for f := range s.asked {
		if o := d.peers[f]; o == nil || o.suspicion != nil {
			delete(s.asked, f) // fell silent too
		}
	}
}

// deaf: of several nodes that beat at us none was heard when it should have
// been, so that the fault may be ours.
func (d *detector) deaf(now time.Duration) bool {
	n := 0
	for _, p := range d.watching {
		if !p.watched && !p.private {
			continue
		}
		if now-p.lastHeard < p.hold/2 {
			return false
		}
		n++
	}
	return n > 1
}

// decideAt is when the suspect is dead, from what is known now.
func (d *detector) decideAt(p *peer) time.Duration {
	s := p.suspicion
	switch agreed := s.agreed(); {
	case len(s.asked) == 0:
		return s.at + d.interval
	case agreed == len(s.asked):
		return s.at + leastConfirm
	case agreed > 0:
		return s.at + confirmTime
	default:
		return s.at + 2*d.interval
	}
}

// answerAbout tells a watcher what we know of a peer that it does not hear.
func (d *detector) answerAbout(now time.Duration, to, about *peer) {
	age := now - about.lastHeard
	c := claim{about: about.id, status: heard, number: uint32(age.Milliseconds())}
	if about.lastHeard == 0 || age > about.hold*3/4 {
		if !about.watched || now < d.graceUntil {
			return
		}
		c.status = silent
	}
	d.send(to, packet{claims: []claim{c}})
}

// answered takes what another watcher knows of a suspect.
func (d *detector) answered(now time.Duration, from, about *peer, c claim) {
	s := about.suspicion
	if s == nil {
		return
	}
	if c.status == silent {
		if _, was := s.asked[from.id]; was {
			s.asked[from.id] = true
		}
		return
	}
	if at := now - time.Duration(c.number)*time.Millisecond; at > about.aged {
		about.aged = at
		d.clear(now, about)
	}
}

// clear ends the suspicion of a peer that turned out to be alive.
func (d *detector) clear(now time.Duration, p *peer) {
	if p.suspicion == nil {
		return
	}
	p.suspicion = nil
	d.counts.cleared++
	p.slack = min(max(p.slack, d.interval), p.hold)
	p.slackUntil = max(p.slackUntil, now+slackTime)
}

// declare ends a suspicion by a verdict of our own.
func (d *detector) declare(now time.Duration, p *peer, status Status) {
	c := claim{about: p.id, status: status, deaths: p.claim.deaths, number: p.claim.number}
	private := d.deaf(now)
	if status == Dead {
		d.counts.confirmed++
		c.deaths = uint8(min(int(c.deaths)+1, 255))
	}
	p.suspicion = nil
	p.watched = status == Mute
	p.claim, p.claimedAt, p.private = c, now, private
	d.version++
	if !private {
		d.proclaim(p.id)
	}
}

// watchMute gives a mute node up when its kernel refuses no more, or for too long.
func (d *detector) watchMute(now time.Duration, p *peer) {
	if !p.watched {
		return
	}
	if now-p.refusedAt > refusalTime || now-p.claimedAt > d.muteTime {
		d.declare(now, p, Dead)
		return
	}
	if now >= p.pingedAt+mutePingEvery {
		p.pingedAt = now
		d.send(p, packet{ping: true})
	}
}
