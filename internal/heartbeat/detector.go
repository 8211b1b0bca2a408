package heartbeat

import (
	"slices"
	"time"
)

// peer is what the detector knows of one other node.
type peer struct {
	id   id
	name string
	// gossip is what gossip thinks of it, and since when.
	gossip      bool
	gossipSince time.Duration
	session     session

	// lastHeard is when this node last heard it, 0 for never; lastAlive is when anybody did, this node, another
	// one, or the wire, or when its kernel last refused a packet while its speaker is down.
	lastHeard, lastAlive time.Duration
	// watched: it sends heartbeats to this node. listed: it is in detector.watching.
	watched, listed bool
	// watcher: this node sends heartbeats to it.
	watcher bool
	allowance
	suspicion *suspicion
	reception reception
	wire      wire

	standing

	// hearsBadly: it says that it hears nobody well.
	hearsBadly bool
	// complainedAt is when it last said that it hears this node badly, lostAt that it hears next to nothing of it, and
	// gaveUpAt that it had given this node up.
	complainedAt, lostAt, gaveUpAt time.Duration
	// refusedAt is when its kernel last refused a packet, pingedAt when it last got one to refuse while its speaker
	// is down.
	refusedAt, pingedAt time.Duration
}

// session is with the run of a peer that answered this node's challenge.
type session struct {
	// boot names the run, and seq is its last packet.
	boot, seq uint64
	challenge uint64
	// challengedAt and answeredAt are when the peer was challenged, and answered, before it had a session.
	challengedAt, answeredAt time.Duration
}

// allowance is how long a peer may be silent.
type allowance struct {
	// hold is what it asked for. slack is added until slackUntil, when that was found to be too short.
	hold, slack, slackUntil time.Duration
}

// statement is a claim and how it spreads.
type statement struct {
	claim
	// private claims are sent to nobody.
	private bool
	// transmits is how often the claim is still to be piggybacked.
	transmits int
}

// standing is what this node claims about a peer.
type standing struct {
	statement
	claimedAt time.Duration
	// accused: this node declared the peer dead, or watches one whose speaker is down, and asks the wire whether that
	// is so.
	accused bool
	// former is the claim before a verdict that may be wrong, backAt is when the peer was heard again after one.
	former claim
	backAt time.Duration
}

func (s *standing) set(now time.Duration, c claim, private bool) {
	s.claim, s.claimedAt, s.private, s.backAt = c, now, private, 0
}

// ownClaim is the claim of this node about itself.
type ownClaim struct {
	statement
	// holdDownUntil is when its hold-down ends, diedAt when it last heard of its death.
	holdDownUntil, diedAt time.Duration
}

func (o *ownClaim) holdDown(now, hold time.Duration) {
	o.holdDownUntil = max(o.holdDownUntil, now+hold)
}

// outgoing is a packet to send.
type outgoing struct {
	to *peer
	packet
}

// detector is the protocol of one node as a state machine: every method gets
// the time and leaves packets to send in out. Time 0 is never.
type detector struct {
	Timers
	// minHold is the least time that others may hear nothing of this node before they suspect it.
	minHold, maxHoldDown time.Duration
	// random returns a number that nobody can guess and that is never 0.
	random    func() uint64
	self      id
	boot, seq uint64
	// hold is how long others may hear nothing of this node, as it tells them.
	hold  time.Duration
	peers map[id]*peer
	// ring has the peers in the order of their ids.
	ring []*peer
	// watching has those that send heartbeats to this node, and a few that lately did.
	watching []*peer

	own    ownClaim
	spread spread

	born, lastTick time.Duration
	lateness       lateness
	grace          grace
	// lapsedAt is when this node last found that it had not been running, epoch counts that.
	lapsedAt time.Duration
	epoch    uint64
	// heartbeats counts them.
	heartbeats uint16

	link link
	// hearsBadly: this node hears all others badly, and is itself at fault. badUntil is when it last did not hear well.
	hearsBadly bool
	// hearsNone: several nodes send it heartbeats, and it hears none, by whoever's fault. hearsSome: it hears some
	// well.
	hearsNone, hearsSome bool
	badUntil             time.Duration

	// version rises with what is known.
	version uint64
	out     []outgoing
	// asks are questions for the wire.
	asks   []question
	counts *counters
}

func newDetector(t Timers, realtime bool, random func() uint64, name string, now time.Duration) *detector {
	self, hold := idOf(name), t.hold(realtime)
	return &detector{
		Timers:      t,
		minHold:     hold,
		maxHoldDown: maxHoldDown,
		random:      random,
		self:        self,
		boot:        random(),
		peers:       map[id]*peer{},
		own:         ownClaim{statement: statement{claim: claim{about: self, status: Alive}}},
		version:     1,
		born:        now,
		lastTick:    now,
		hold:        hold,
		lateness:    lateness{minute: now},
		grace:       grace{from: now, until: now + hold},
		lapsedAt:    now,
		epoch:       1,
		counts:      &counters{},
	}
}

// tick does what is due at now. It is to be called at the time that due returned, or earlier.
func (d *detector) tick(now time.Duration) {
	if now >= d.lastTick+d.Interval {
		d.heartbeat(now)
	}
	for _, p := range d.watching {
		d.check(now, p)
	}
	d.sendBroadcast(now)
}

// heartbeat does what happens once each interval.
func (d *detector) heartbeat(now time.Duration) {
	gap := now - d.lastTick
	late := gap - d.Interval
	if late > d.Interval {
		d.extendGrace(now, min(late, d.hold))
	}
	if gap > d.hold {
		d.epoch++
		d.lapsedAt = now
		d.extendGrace(now, d.hold)
		d.counts.lapsed.Add(1)
	}
	d.lateness.add(now, late)
	d.hold = max(d.minHold, min(4*d.Interval+d.lateness.worst()*3/2, maxAdaptedHold))
	// Keep the rhythm unless it is lost.
	if d.lastTick += d.Interval; now-d.lastTick >= d.Interval {
		d.lastTick = now
	}
	d.measure(now)
	d.ageSelf(now)
	d.watching = slices.DeleteFunc(d.watching, func(p *peer) bool {
		p.listed = p.watched || p.accused
		return !p.listed
	})
	d.choose(now)
	d.heartbeats++
	if len(d.ring) > 0 {
		d.spread.probed = (d.spread.probed + 1) % len(d.ring)
	}
	for i, p := range d.ring {
		out := packet{heartbeat: p.watcher, complains: d.hearsBadlyOf(now, p)}
		out.lost = out.complains && p.reception.share < badReception && !p.answeredLately(now)
		if i == d.spread.probed {
			// A probe goes to one peer in each interval by turns: sessions are there before they are needed,
			// lost claims get through, and a peer beyond a healed partition is found.
			out.claims = d.antiEntropy()
		} else if !out.heartbeat && !out.complains {
			continue
		}
		d.send(p, out)
	}
}

// grace is a time without verdicts, since a silence may be this node's own.
type grace struct {
	from, until time.Duration
	// lateAt is when the latest late heartbeat was sent.
	lateAt time.Duration
}

// extendGrace holds verdicts back after this node did not run: what did not arrive meanwhile may wait in a queue, or
// was lost by a machine that stood still. A node that goes on running too seldom judges nevertheless after maxGrace,
// by what it has read each time that it ran. Otherwise it would never see a death.
func (d *detector) extendGrace(now, wait time.Duration) {
	g := &d.grace
	if d.lastTick > g.lateAt+d.hold {
		g.from = now // it had run as it should
	}
	g.lateAt = now
	g.until = max(g.until, min(now+wait, g.from+maxGrace))
}

// lateness is how late heartbeats were lately. Where they are late a node asks others for more time than the least,
// but not for so much that they would notice a death too late.
type lateness struct {
	// latest is the worst of the minute that began at minute, before that of the one before.
	latest, before, minute time.Duration
}

func (l *lateness) add(now, late time.Duration) {
	if now >= l.minute+time.Minute {
		l.latest, l.before, l.minute = 0, l.latest, now
	}
	if late < maxAdaptedHold {
		l.latest = max(l.latest, late)
	}
}

func (l *lateness) worst() time.Duration { return max(l.latest, l.before) }

// due returns when tick is to be called next.
func (d *detector) due() time.Duration {
	next := d.lastTick + d.Interval
	for _, p := range d.watching {
		if at := d.checkAt(p); at != 0 {
			next = min(next, max(at, d.grace.until))
		}
	}
	if len(d.spread.urgent) > 0 {
		next = min(next, d.spread.broadcastAt)
	}
	return next
}

// restless: a peer is suspected, so that each of its heartbeats counts at once.
func (d *detector) restless() bool {
	return slices.ContainsFunc(d.watching, func(p *peer) bool { return p.suspicion != nil })
}

// send queues a packet, with fresh claims as far as there is room.
func (d *detector) send(to *peer, p packet) {
	if len(p.claims) < maxClaims {
		p.claims = d.piggyback(to, p.claims)
	}
	d.sendOnly(to, p)
}

// sendOnly queues a packet with nothing but what each packet has.
func (d *detector) sendOnly(to *peer, p packet) {
	d.seq++
	p.from, p.to, p.boot, p.seq, p.hold = d.self, to.id, d.boot, d.seq, d.hold
	p.watch, p.heartbeats, p.hearsBadly, p.hearsNone = to.watcher, d.heartbeats, d.hearsBadly, d.hearsNone
	d.out = append(d.out, outgoing{to, p})
}

// take returns the packets to send, valid until the next call of any method, and forgets them.
func (d *detector) take() []outgoing {
	out := d.out
	d.out = d.out[:0]
	return out
}
