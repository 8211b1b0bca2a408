package detect

import (
	"slices"
	"time"
)

// Config of a Detector.
type Config struct {
	Timers
	NodeName string
	// Realtime reports whether the caller has real-time priority: see SetRealtime.
	Realtime bool
	// Epoch is the first value of View.Epoch.
	Epoch uint64
	// Random returns a number that cannot be guessed and is never 0.
	Random func() uint64
}

// Stats count events since the start of a Detector.
type Stats struct {
	// Suspected counts suspicions; Cleared those that a sign of life ended, and Confirmed verdicts of Dead.
	Suspected, Cleared, Confirmed uint64
	// Refuted counts how often others declared this node dead while it was running.
	Refuted uint64
	// Lapsed counts how often this node did not run for so long that others may have declared it dead.
	Lapsed uint64
	// Refused counts packets that the kernels of peers refused.
	Refused uint64
}

// Detector is the protocol of one node as a state machine. Each method gets the time, and may leave packets and
// questions for the caller to take.
type Detector struct {
	timers      Timers
	maxHoldDown time.Duration
	random      func() uint64
	realtime    bool

	name      string
	self      NodeID
	boot, seq uint64
	// heartbeats numbers the heartbeats.
	heartbeats uint16
	// baseHold is the least time that others may hear nothing of this node before they suspect it. hold is the time
	// that this node asks for.
	baseHold, hold time.Duration

	peers map[NodeID]*peerState
	// ring has the peers ordered by id.
	ring []*peerState
	// watching has the peers that send heartbeats to this node, and a few that did recently.
	watching []*peerState

	// links are the Detectors of the other links.
	links []*Detector

	own           ownClaim
	dissemination dissemination
	link          linkEvidence

	startedAt, lastTick time.Duration
	lateness            lateness
	grace               grace
	// lapsedAt is when this node last found that it had not been running. epoch counts these times.
	lapsedAt time.Duration
	epoch    uint64

	// complainedAt is when any peer last complained about this node.
	complainedAt time.Duration
	// hearsBadly reports whether this node hears all others badly, and is faulty itself. badUntil is when it last did
	// not hear well.
	hearsBadly bool
	badUntil   time.Duration
	// hearsNone reports whether several nodes send heartbeats to this one and it hears none, whichever side is
	// faulty.
	hearsNone bool
	// hearsSome reports whether this node hears some nodes well, and they do not complain that they lost it.
	hearsSome bool
	// usesFrames reports whether packets to any peer go as frames too.
	usesFrames bool

	// version rises with each change of what is known.
	version   uint64
	packets   []Packet
	questions []WireQuestion
	stats     Stats
}

// New returns the Detector of a node without peers.
func New(c Config, at time.Duration) *Detector {
	timers := c.WithDefaults()
	self, hold := NodeIDOf(c.NodeName), timers.Hold(c.Realtime)

	return &Detector{
		timers:      timers,
		maxHoldDown: maxHoldDown,
		random:      c.Random,
		realtime:    c.Realtime,
		name:        c.NodeName,
		self:        self,
		boot:        c.Random(),
		baseHold:    hold,
		hold:        hold,
		peers:       map[NodeID]*peerState{},
		own:         ownClaim{heldClaim: heldClaim{NodeClaim: NodeClaim{About: self, Status: Alive}}},
		startedAt:   at,
		lastTick:    at,
		lateness:    lateness{minute: at},
		grace:       grace{from: at, until: at + hold},
		lapsedAt:    at,
		epoch:       c.Epoch,
		version:     1,
	}
}

// SetRealtime sets whether the caller has real-time priority. Without it this node asks others for more patience.
func (d *Detector) SetRealtime(realtime bool) {
	d.realtime = realtime
	d.baseHold = d.timers.Hold(realtime)
	d.version++
}

// Tick does what is due, and reports whether it sent heartbeats. Call it at the time that Due returned, or earlier.
func (d *Detector) Tick(at time.Duration) (beat bool) {
	if at >= d.lastTick+d.timers.Interval {
		d.sendHeartbeats(at)
		beat = true
	}
	for _, p := range d.watching {
		d.checkPeer(at, p)
	}
	d.sendBroadcast(at)

	return beat
}

// Due returns when Tick is to be called next.
func (d *Detector) Due() time.Duration {
	next := d.lastTick + d.timers.Interval
	for _, p := range d.watching {
		check := d.nextCheck(p)
		if check != 0 {
			next = min(next, max(check, d.grace.until))
		}
	}
	if len(d.dissemination.urgent) > 0 {
		next = min(next, d.dissemination.broadcastAt)
	}

	return next
}

// TakePackets returns the packets to send, and forgets them. They are valid until the next call of any method.
func (d *Detector) TakePackets() []Packet {
	packets := d.packets
	d.packets = d.packets[:0]

	return packets
}

// TakeQuestions returns the questions for the wire, and forgets them. They are valid until the next call of any
// method.
func (d *Detector) TakeQuestions() []WireQuestion {
	questions := d.questions
	d.questions = d.questions[:0]

	return questions
}

// HasSuspect reports whether a peer is suspected, so that each of its heartbeats must be received at once.
func (d *Detector) HasSuspect() bool {
	return slices.ContainsFunc(d.watching, func(p *peerState) bool { return p.suspicion != nil })
}

// Version rises when an event changes the View. Time alone may change the View without it.
func (d *Detector) Version() uint64 { return d.version }

// Epoch returns the View's.
func (d *Detector) Epoch() uint64 { return d.epoch }

// Hold returns how long others may hear nothing of this node, as it tells them.
func (d *Detector) Hold() time.Duration { return d.hold }

// HearsSome reports whether this node heard another one well when it last sent heartbeats.
func (d *Detector) HearsSome() bool { return d.hearsSome }

// Lateness returns how late the latest heartbeat of the last one to two minutes was.
func (d *Detector) Lateness() time.Duration { return d.lateness.worst() }

// Stats returns the counts so far.
func (d *Detector) Stats() Stats { return d.stats }
