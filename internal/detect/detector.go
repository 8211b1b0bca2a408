package detect

import (
	"slices"
	"time"
)

// peer is what the detector knows of one other node.
type peerState struct {
	id   NodeID
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

	// hearsBadly: it says that it hears no node well.
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
	NodeClaim
	// private claims are not sent.
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
	former NodeClaim
	backAt time.Duration
}

func (s *standing) set(at time.Duration, c NodeClaim, private bool) {
	s.NodeClaim, s.claimedAt, s.private, s.backAt = c, at, private, 0
}

// ownClaim is the claim of this node about itself.
type ownClaim struct {
	statement
	// holdDownUntil is when its hold-down ends, diedAt when it last heard of its death.
	holdDownUntil, diedAt time.Duration
}

func (o *ownClaim) holdDown(at, hold time.Duration) {
	o.holdDownUntil = max(o.holdDownUntil, at+hold)
}

// Stats count what a Detector has met.
type Stats struct {
	// Suspected, Cleared and Confirmed are suspicions that began, and those that ended either way.
	Suspected, Cleared, Confirmed uint64
	// Refuted is how often others declared this node dead while it was running. Lapsed is how often it did not run for
	// so long that they may have done so. Refused are packets that the kernels of peers refused.
	Refuted, Lapsed, Refused uint64
}

// Config of a Detector.
type Config struct {
	Timers
	NodeName string
	// Realtime: the caller has real-time priority, see SetRealtime.
	Realtime bool
	// Epoch is where View.Epoch begins.
	Epoch uint64
	// Random returns a number that cannot be guessed and is never 0.
	Random func() uint64
}

// Detector is the protocol of one node as a state machine: every method gets
// the time and leaves packets to send in out. Time 0 is never.
type Detector struct {
	timers Timers
	// minHold is the least time that others may hear nothing of this node before they suspect it.
	minHold, maxHoldDown time.Duration
	random               func() uint64
	realtime             bool
	name                 string
	self                 NodeID
	boot, seq            uint64
	// hold is how long others may hear nothing of this node, as it tells them.
	hold  time.Duration
	peers map[NodeID]*peerState
	// ring has the peers in the order of their ids.
	ring []*peerState
	// watching has those that send heartbeats to this node, and a few that lately did.
	watching []*peerState

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
	out     []Packet
	// asks are questions for the wire.
	questions []WireQuestion
	stats     Stats
}

// New returns the Detector of a node that knows no peer.
func New(c Config, at time.Duration) *Detector {
	timers := c.WithDefaults()
	self, hold := NodeIDOf(c.NodeName), timers.Hold(c.Realtime)
	return &Detector{
		timers:      timers,
		minHold:     hold,
		maxHoldDown: maxHoldDown,
		random:      c.Random,
		realtime:    c.Realtime,
		name:        c.NodeName,
		self:        self,
		boot:        c.Random(),
		peers:       map[NodeID]*peerState{},
		own:         ownClaim{statement: statement{NodeClaim: NodeClaim{About: self, Status: Alive}}},
		version:     1,
		born:        at,
		lastTick:    at,
		hold:        hold,
		lateness:    lateness{minute: at},
		grace:       grace{from: at, until: at + hold},
		lapsedAt:    at,
		epoch:       c.Epoch,
	}
}

// SetRealtime tells whether the caller has real-time priority. Without it the others have to be more patient.
func (d *Detector) SetRealtime(realtime bool) {
	d.realtime = realtime
	d.minHold = d.timers.Hold(realtime)
	d.version++
}

// Tick does what is due at now, and reports whether heartbeats were. It is to be called at the time that Due returned, or
// earlier.
func (d *Detector) Tick(at time.Duration) (beat bool) {
	if beat = at >= d.lastTick+d.timers.Interval; beat {
		d.heartbeat(at)
	}
	for _, p := range d.watching {
		d.check(at, p)
	}
	d.sendBroadcast(at)
	return beat
}

// heartbeat does what happens once each interval.
func (d *Detector) heartbeat(at time.Duration) {
	gap := at - d.lastTick
	late := gap - d.timers.Interval
	if late > d.timers.Interval {
		d.extendGrace(at, min(late, d.hold))
	}
	if gap > d.hold {
		d.epoch++
		d.lapsedAt = at
		d.extendGrace(at, d.hold)
		d.stats.Lapsed++
	}
	d.lateness.add(at, late)
	d.hold = max(d.minHold, min(4*d.timers.Interval+d.lateness.worst()*3/2, maxAdaptedHold))
	// Keep the rhythm unless it is lost.
	if d.lastTick += d.timers.Interval; at-d.lastTick >= d.timers.Interval {
		d.lastTick = at
	}
	d.measure(at)
	d.ageSelf(at)
	d.watching = slices.DeleteFunc(d.watching, func(p *peerState) bool {
		p.listed = p.watched || p.accused
		return !p.listed
	})
	d.choose(at)
	d.heartbeats++
	if len(d.ring) > 0 {
		d.spread.probed = (d.spread.probed + 1) % len(d.ring)
	}
	for i, p := range d.ring {
		out := Packet{Heartbeat: p.watcher, Complains: d.hearsBadlyOf(at, p)}
		out.Lost = out.Complains && p.reception.share < badReception && !p.answeredLately(at)
		if i == d.spread.probed {
			// A probe goes to one peer in each interval by turns: sessions are there before they are needed,
			// lost claims get through, and a peer beyond a healed partition is found.
			out.Claims = d.antiEntropy()
		} else if !out.Heartbeat && !out.Complains {
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
func (d *Detector) extendGrace(at, wait time.Duration) {
	g := &d.grace
	if d.lastTick > g.lateAt+d.hold {
		g.from = at // it had run as it should
	}
	g.lateAt = at
	g.until = max(g.until, min(at+wait, g.from+maxGrace))
}

// lateness is how late heartbeats were lately. Where they are late a node asks others for more time than the least,
// but not for so much that they would notice a death too late.
type lateness struct {
	// latest is the worst of the minute that began at minute, before the worst of the minute before.
	latest, before, minute time.Duration
}

func (l *lateness) add(at, late time.Duration) {
	if at >= l.minute+time.Minute {
		l.latest, l.before, l.minute = 0, l.latest, at
	}
	if late < maxAdaptedHold {
		l.latest = max(l.latest, late)
	}
}

func (l *lateness) worst() time.Duration { return max(l.latest, l.before) }

// Due returns when tick is to be called next.
func (d *Detector) Due() time.Duration {
	next := d.lastTick + d.timers.Interval
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

// HasSuspect reports whether a peer is suspected, so that each of its heartbeats counts at once.
func (d *Detector) HasSuspect() bool {
	return slices.ContainsFunc(d.watching, func(p *peerState) bool { return p.suspicion != nil })
}

// send queues a packet, with fresh claims as far as there is room.
func (d *Detector) send(to *peerState, p Packet) {
	if len(p.Claims) < maxClaims {
		p.Claims = d.piggyback(to, p.Claims)
	}
	d.sendOnly(to, p)
}

// sendOnly queues a packet with nothing but what each packet has.
func (d *Detector) sendOnly(to *peerState, p Packet) {
	d.seq++
	p.From, p.To, p.Boot, p.Seq, p.Hold = d.self, to.id, d.boot, d.seq, d.hold
	p.Watch, p.Heartbeats, p.HearsBadly, p.HearsNone = to.watcher, d.heartbeats, d.hearsBadly, d.hearsNone
	d.out = append(d.out, p)
}

// TakePackets returns the packets to send, valid until the next call of any method, and forgets them.
func (d *Detector) TakePackets() []Packet {
	out := d.out
	d.out = d.out[:0]
	return out
}

// TakeQuestions returns the questions for the wire, valid until the next call of any method, and forgets them.
func (d *Detector) TakeQuestions() []WireQuestion {
	questions := d.questions
	d.questions = d.questions[:0]
	return questions
}
