package detect

import "time"

const (
	// confirmTime is how long the other watchers have for a veto once one of them agreed.
	confirmTime = 25 * time.Millisecond
	// queryInterval is the time between two queries. No query falls into the moment of a verdict: with 25 ms for
	// both, 17 of 2,124 networks of four nodes lost a node that lived.
	queryInterval = 15 * time.Millisecond
	// minConfirmTime lets a refusal by the kernel arrive.
	minConfirmTime = 5 * time.Millisecond
	// urgentTime is how long a suspicion is pursued that often. After it only every slowQueryInterval.
	urgentTime        = time.Second
	slowQueryInterval = 250 * time.Millisecond
	// maxQueried is how many other watchers are asked.
	maxQueried = 4
	// slackTime is how long a peer that was suspected for nothing gets more time than it asked for.
	slackTime = time.Minute
	// refusalTime is how long a refusal shows that the node is up. Kernels send one a second (Linux, icmp_ratelimit):
	// one may be lost.
	refusalTime = 2500 * time.Millisecond
	// pingInterval is the time between packets that a node without a speaker may refuse.
	pingInterval = 250 * time.Millisecond
)

// peerSuspicion is one watcher's doubt about one node. It is private until another node shares it.
type peerSuspicion struct {
	// startedAt is when the suspicion began, queriedAt when others were asked last, and checkedAt when it was last
	// considered.
	startedAt, queriedAt, checkedAt time.Duration
	// isHearsay reports whether this node knew from others alone that the suspect was alive.
	isHearsay bool
	// replies has the nodes that were asked, and what they replied; Unknown while they have not.
	replies map[NodeID]Status
}

// confirmAt returns when the time of the other watchers for a veto ends. A watcher that knows the suspect by hearsay
// gives them the time for two more replies: all of them doubt at the same moment, and the next node that heard the
// suspect may be asked by one of them alone.
func (s *peerSuspicion) confirmAt() time.Duration {
	if s.isHearsay {
		return s.startedAt + 2*confirmTime
	}

	return s.startedAt + confirmTime
}

// count returns how many nodes gave a reply.
func (s *peerSuspicion) count(reply Status) (n int) {
	for _, r := range s.replies {
		if r == reply {
			n++
		}
	}

	return n
}

// isShared reports whether another node that hears well misses the suspect too. If all nodes that are left reply that
// they do not watch it, or two do after a while, then its watchers died with it: the replies show that this node is
// heard and hears.
func (s *peerSuspicion) isShared(at time.Duration) bool {
	agreed := s.count(replySilent)
	switch {
	case agreed > 0 && agreed == len(s.replies) && !s.isHearsay:
		return true
	case agreed > 0:
		return at >= s.confirmAt()
	}

	unwatched := s.count(replyUnwatched)
	allUnwatched := unwatched > 0 && unwatched == len(s.replies) && at >= s.startedAt+confirmTime
	enoughUnwatched := unwatched >= minAccusers && at >= s.startedAt+urgentTime

	return allUnwatched || enoughUnwatched
}

// interval returns the time between queries.
func (s *peerSuspicion) interval() time.Duration {
	if s.queriedAt-s.startedAt > urgentTime {
		return slowQueryInterval
	}

	return queryInterval
}

// nextCheck returns when a suspicion is to be considered again if no reply comes before.
func (s *peerSuspicion) nextCheck(wireAsked time.Duration) time.Duration {
	next := s.queriedAt + s.interval()
	for _, t := range [...]time.Duration{s.startedAt + minConfirmTime, s.confirmAt(), wireAsked + wireTime} {
		if t > s.checkedAt {
			next = min(next, t)
		}
	}

	return next
}

// patience returns how long there may be no sign of life of a peer.
func (d *Detector) patience(p *peerState) time.Duration {
	switch {
	case p.Status == SpeakerDown:
		return refusalTime
	case p.answersOnWire():
		return wirePatience
	case p.isRefusing():
		return 3 * d.timers.Interval
	}

	return p.hold + p.slack
}

// nextCheck returns when checkPeer has something to do for a peer, or 0 for never.
func (d *Detector) nextCheck(p *peerState) time.Duration {
	switch {
	case p.accused && p.Status == Dead:
		return p.wire.askedAt + slowWireInterval
	case !p.watched || p.Status > SpeakerDown:
		return 0
	case p.suspicion != nil:
		return min(p.suspicion.nextCheck(p.wire.askedAt), d.nextWireQuestion(p))
	case p.Status == SpeakerDown:
		return min(p.pingedAt+pingInterval, d.nextWireQuestion(p))
	}

	return min(p.lastAlive+d.patience(p), d.nextWireQuestion(p))
}

// checkPeer does what is due for a peer that sends heartbeats to this node.
func (d *Detector) checkPeer(at time.Duration, p *peerState) {
	if at > p.slackUntil {
		p.slack = 0
	}
	if p.accused && at >= p.wire.askedAt+slowWireInterval {
		d.askWire(at, p)
	}
	if !p.watched || p.Status > SpeakerDown || at < d.grace.until {
		return
	}

	if p.Status == SpeakerDown {
		if at-p.claimedAt > SpeakerDownTime && !p.wire.isPending(at) {
			d.declare(at, p, Dead, false)
			return
		}
		if at >= p.pingedAt+pingInterval {
			p.pingedAt = at
			d.send(p, Packet{Ping: true})
		}
	}

	if at >= p.lastAlive+d.patience(p) {
		if p.suspicion == nil {
			d.suspect(at, p)
		}
		d.pursueSuspicion(at, p)
	}
	// After the verdict, which may rest on the last answer: on a slow machine the next answer never comes in time.
	if p.watched && at >= d.nextWireQuestion(p) {
		d.askWire(at, p)
	}
}

// suspect begins a suspicion.
func (d *Detector) suspect(at time.Duration, p *peerState) {
	d.stats.Suspected++
	d.version++
	p.suspicion = &peerSuspicion{
		startedAt: at,
		isHearsay: p.lastAlive > p.lastHeard,
		replies:   map[NodeID]Status{},
	}
}

// pursueSuspicion asks about a suspect, and decides as soon as enough is known.
func (d *Detector) pursueSuspicion(at time.Duration, p *peerState) {
	s := p.suspicion
	s.checkedAt = at
	if s.queriedAt == 0 || at >= s.queriedAt+s.interval() {
		d.queryOthers(at, p)
	}

	switch {
	case p.wire.isPending(at) || at < s.startedAt+minConfirmTime:
	case p.isRefusing() && p.Status != SpeakerDown:
		if p.wire.askedAt > p.lastAlive {
			d.declare(at, p, SpeakerDown, false)
		}
	case d.isAlone(at):
		if d.confirmsAlone(at, p) {
			d.declare(at, p, Dead, true)
		}
	case s.isShared(at) && d.hearsWell(at):
		d.declare(at, p, Dead, false)
	}
}

// queryOthers asks the suspect itself and its other watchers.
func (d *Detector) queryOthers(at time.Duration, p *peerState) {
	s := p.suspicion
	s.queriedAt = at
	d.send(p, Packet{Ping: true})

	queried := 0
	d.successors(p.id, func(o *peerState) bool {
		if o.suspicion != nil || !d.status(at, o).Living() {
			return true
		}
		if _, known := s.replies[o.id]; !known {
			s.replies[o.id] = Unknown
		}
		d.send(o, Packet{Claims: []NodeClaim{{About: p.id, Status: query}}})
		queried++
		return queried < maxQueried
	})

	for id := range s.replies {
		o := d.peers[id]
		if o == nil || o.suspicion != nil || !d.status(at, o).Living() {
			delete(s.replies, id) // it is gone, or fell silent too
		}
	}
}

// answerQuery replies to a watcher that does not hear a peer.
func (d *Detector) answerQuery(at time.Duration, to, about *peerState) {
	age := at - about.lastAlive
	isRecent := about.lastAlive != 0 && age <= about.hold*3/4
	// A sign of life by others, by the wire, or by a refusal counts until this node has doubts too: a node that its
	// watchers hear one at a time is not dead.
	isIndirect := about.lastAlive > about.lastHeard && about.suspicion == nil && age <= d.patience(about)-about.slack

	reply := NodeClaim{About: about.id, Status: replyHeard}
	switch {
	case isRecent || isIndirect:
		// Rounded up: news gets no fresher by being passed on.
		reply.Incarnation = uint32((age + time.Millisecond - 1).Milliseconds())
	case !d.hearsWell(at):
		return
	case about.watched:
		reply.Status = replySilent
	default:
		reply.Status = replyUnwatched
	}
	d.send(to, Packet{Claims: []NodeClaim{reply}})
}

// handleReply takes what another node knows about a suspect.
func (d *Detector) handleReply(at time.Duration, from, about *peerState, c NodeClaim) {
	s := about.suspicion
	if s == nil {
		return
	}
	if c.Status != replyHeard {
		if _, ok := s.replies[from.id]; ok {
			s.replies[from.id] = c.Status
		}
		return
	}

	// News is never fresher than at the node that heard it: the age is rounded up, and counts from the query.
	heardAt := s.queriedAt - time.Duration(c.Incarnation)*time.Millisecond
	if heardAt > about.lastAlive {
		about.lastAlive = heardAt
		d.clearSuspicion(at, about)
	}
}

// clearSuspicion ends the suspicion of a peer that turned out to be alive.
func (d *Detector) clearSuspicion(at time.Duration, p *peerState) {
	if p.suspicion == nil {
		return
	}

	p.suspicion = nil
	d.version++
	d.stats.Cleared++
	p.slack = min(max(p.slack, 2*d.timers.Interval), p.hold)
	p.slackUntil = max(p.slackUntil, at+slackTime)
}

// declare ends a suspicion by a verdict, for this node alone or for all nodes.
func (d *Detector) declare(at time.Duration, p *peerState, status Status, private bool) {
	c := p.NodeClaim
	c.Status = status
	if status == Dead {
		d.stats.Confirmed++
		c.Deaths = p.nextDeaths()
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
