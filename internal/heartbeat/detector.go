package heartbeat

import (
	"slices"
	"time"
)

// settings of a detector.
type settings struct {
	// interval between beats; leastHold is how long others may at least hear nothing of this node.
	interval, leastHold time.Duration
	// watchers is how many nodes get the beats.
	watchers int
	// holdDown after the first death; it doubles with each further one up to maxHoldDown, and a node
	// that lived for forgiveTime starts anew.
	holdDown, maxHoldDown, forgiveTime time.Duration
	// muteTime is how long a node may be up without its speaker.
	muteTime time.Duration
	// random returns what nobody can guess and is never 0.
	random func() uint64
}

// peer is what the detector knows of one other node.
type peer struct {
	id   id
	name string
	// gossip is what gossip thinks of it, and since when.
	gossip      bool
	gossipSince time.Duration

	// The session: the run of the peer that answered our challenge, and the last packet of it.
	boot, seq    uint64
	challenge    uint64
	challengedAt time.Duration

	// lastHeard is 0 until it is heard first; aged is the same by the word of others too.
	lastHeard, aged time.Duration
	// watched: it beats at us, and hold is the time it promised to do so within. slack is added
	// to it when that was found to be too short, until slackUntil.
	watched, listed   bool
	hold              time.Duration
	slack, slackUntil time.Duration
	suspicion         *suspicion
	reception           reception
	wire              wire
	// accused: this node declared it dead. poorAt is when it last said that it hears us badly, and
	// missedAt that it had given us up.
	accused bool
	// deaf: it says that it hears nobody well.
	hearsBadly             bool
	complainedAt, gaveUpAt time.Duration
	// backAt is when one that was dead for us alone was heard again, former what it claimed before.
	backAt time.Duration
	former claim
	// refusedAt is when its kernel refused a packet last.
	refusedAt time.Duration
	// pingedAt is when a mute node got a packet to refuse last.
	pingedAt time.Duration
	// watcher: we beat at it.
	watcher bool

	claim claim
	// claimedAt is when the claim came; private claims are told to nobody.
	claimedAt time.Duration
	private   bool
	// tells counts how often the claim is still to be told with other packets.
	transmits int
}

// outgoing is a packet to send; the zero challenge, boot and seq are filled in by the detector.
type outgoing struct {
	to *peer
	packet
}

// counts are events since the start.
type counts struct {
	suspected, cleared, confirmed, refuted, lapsed, refused uint64
}

// detector is the protocol of one node as a state machine: every method gets
// the time and leaves packets to send in out. Time 0 is never.
type detector struct {
	settings
	self      id
	boot, seq uint64
	// hold is how long others may hear nothing of this node, as it tells them.
	hold  time.Duration
	peers map[id]*peer
	// ring has the peers in the order of their ids.
	ring []*peer
	// watching has those that beat at us, and a few that lately did.
	watching []*peer

	// own is the claim about this node, held until heldUntil.
	own       claim
	heldUntil time.Duration
	toldDead  time.Duration
	ownTells  int

	born, lastTick time.Duration
	// latest and latestBefore are how late the latest beat was, in this minute and the one before.
	latest, latestBefore, minute time.Duration
	// graceUntil: before that a silence may be our own. graceFrom is when that began, and
	// lateAt is when the latest late beat was made.
	graceFrom, graceUntil, lateAt time.Duration
	// lapsedAt is when this node last found that it had not been running, epoch counts that.
	lapsedAt time.Duration
	epoch    uint64

	// beats counts them; greeted and recited are where old claims are told, and told of, by turns.
	heartbeats            uint16
	greeted, recited int
	// telling has whose claims go with other packets, shouting whose go to everybody at shoutAt.
	telling, shouting []id
	shoutAt           time.Duration

	// best is the receipt of the peer that is heard best; deaf that it is bad and this node's own fault; wireGood and wireBad are when the wire showed last
	// that this node's link works, and that it does not.
	best              int
	deaf              bool
	wireGood, wireBad time.Duration
	// badUntil is when this node last did not hear well.
	badUntil time.Duration

	// version rises with what is known.
	version uint64
	out     []outgoing
	// asks are peers that the wire is to be asked about.
	asks   []question
	counts counts
}

func newDetector(s settings, name string, now time.Duration) *detector {
	me := idOf(name)
	return &detector{
		settings: s, self: me, boot: s.random(), peers: map[id]*peer{}, own: claim{about: me, status: Alive}, best: fullReception,
		version: 1, born: now, lastTick: now, hold: s.leastHold, minute: now,
		graceFrom: now, graceUntil: now + s.leastHold, lapsedAt: now, epoch: 1,
	}
}

// tick does what is due at now. It is to be called at the time that due returned, or earlier.
func (d *detector) tick(now time.Duration) {
	if now >= d.lastTick+d.interval {
		d.heartbeat(now)
	}
	for _, p := range d.watching {
		d.check(now, p)
	}
	d.sendBroadcasts(now)
}

// beat is what happens once each interval.
func (d *detector) heartbeat(now time.Duration) {
	gap := now - d.lastTick
	late := gap - d.interval
	if late > d.interval/2 {
		d.grace(now, min(late, d.hold))
	}
	if gap > d.hold {
		d.epoch++
		d.lapsedAt = now
		d.grace(now, d.hold)
		d.counts.lapsed++
	}
	d.adapt(now, late)
	// Keep the rhythm unless it is lost.
	if d.lastTick += d.interval; now-d.lastTick >= d.interval {
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
	greeted := d.nextProbed()
	for _, p := range d.ring {
		poor := d.complainsOf(now, p)
		switch {
		case p == greeted:
			d.send(p, packet{heartbeat: p.watcher, complains: poor, claims: d.antiEntropy()})
		case p.watcher, poor:
			d.send(p, packet{heartbeat: p.watcher, complains: poor})
		}
	}
}

// grace holds back our verdicts for a while after this node did not run: what did
// not arrive meanwhile may wait in a queue, or have been lost by a machine that
// stood still. A node that goes on like that judges nevertheless, by what it has
// read each time that it ran; or else it would never see a death.
func (d *detector) grace(now, wait time.Duration) {
	if d.lastTick > d.lateAt+d.hold {
		d.graceFrom = now // it had run as it should
	}
	d.lateAt = now
	d.graceUntil = max(d.graceUntil, min(now+wait, d.graceFrom+maxGrace))
}

// adapt asks for more time than the least where beats were late in the last
// minutes, but not for so much that a loss would be noticed too late.
func (d *detector) adapt(now, late time.Duration) {
	if now >= d.minute+time.Minute {
		d.latest, d.latestBefore, d.minute = 0, d.latest, now
	}
	if late < maxAdaptedHold {
		d.latest = max(d.latest, late)
	}
	d.hold = max(d.leastHold, min(2*d.interval+max(d.latest, d.latestBefore)*3/2, maxAdaptedHold))
}

// greet returns to whom old claims are told, one peer in each interval by turns: sessions are
// there before they are needed, claims that were lost get through, and a peer
// beyond a healed partition is found.
func (d *detector) nextProbed() *peer {
	if len(d.ring) == 0 {
		return nil
	}
	d.greeted = (d.greeted + 1) % len(d.ring)
	return d.ring[d.greeted]
}

// due returns when tick is to be called next.
func (d *detector) due() time.Duration {
	next := d.lastTick + d.interval
	for _, p := range d.watching {
		if at := d.checkAt(p); at != 0 {
			next = min(next, max(at, d.graceUntil))
		}
	}
	if len(d.shouting) > 0 {
		next = min(next, d.shoutAt)
	}
	return next
}

// send queues a packet with what each packet has.
func (d *detector) send(to *peer, p packet) {
	d.seq++
	p.from, p.to, p.boot, p.seq, p.hold, p.watch, p.heartbeats, p.hearsBadly = d.self, to.id, d.boot, d.seq, d.hold, to.watcher, d.heartbeats, d.deaf
	if len(p.claims) < maxClaims {
		p.claims = d.piggyback(to, p.claims)
	}
	d.out = append(d.out, outgoing{to, p})
}

// take returns the packets to send, valid until the next call of any method, and forgets them.
func (d *detector) take() []outgoing {
	out := d.out
	d.out = d.out[:0]
	return out
}
