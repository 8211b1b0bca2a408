package detect

import (
	"slices"
	"time"
)

// sendHeartbeats does what happens once each interval.
func (d *Detector) sendHeartbeats(at time.Duration) {
	d.noteLateness(at)
	d.measureReception(at)
	d.followLinks(at)
	d.ageOwnClaim(at)
	d.watching = slices.DeleteFunc(d.watching, func(p *peerState) bool {
		p.listed = p.watched || p.accused
		return !p.listed
	})
	d.chooseWatchers(at)

	d.heartbeats++
	s := &d.dissemination
	if len(d.ring) > 0 {
		s.probed = (s.probed + 1) % len(d.ring)
	}
	d.usesFrames = false
	for i, p := range d.ring {
		d.chooseCarriers(at, p)
		d.sendHeartbeat(at, p, i == s.probed)
	}
}

// sendHeartbeat sends a peer what is due in this interval. One peer in turn gets a probe in each. So sessions begin
// before they are needed, lost claims arrive, and a peer beyond a healed partition is found.
func (d *Detector) sendHeartbeat(at time.Duration, p *peerState, isProbe bool) {
	out := Packet{
		Heartbeat: p.isWatcher,
		Complains: d.hasLossFrom(at, p),
	}
	isBad := p.reception.share < badReception
	out.Lost = out.Complains && isBad && !p.answeredRecently(at)
	if isProbe {
		out.Claims = d.antiEntropy()
	}
	if isProbe || out.Heartbeat || out.Complains {
		d.send(p, out)
	}
}

// noteLateness adapts this node to the time that has passed since its last heartbeats.
func (d *Detector) noteLateness(at time.Duration) {
	interval := d.timers.Interval
	gap := at - d.lastTick
	late := gap - interval
	if late > interval {
		missed := min(late, d.hold)
		d.extendGrace(at, missed)
	}
	if gap > d.hold {
		d.epoch++
		d.lapsedAt = at
		d.extendGrace(at, d.hold)
		d.stats.Lapsed++
	}

	d.lateness.add(at, late)
	expected := d.lateness.worst() * 3 / 2
	wanted := 4*interval + expected
	wanted = min(wanted, maxAdaptedHold)
	d.hold = max(d.baseHold, wanted)

	// Keep the rhythm unless it is lost.
	d.lastTick += interval
	if at-d.lastTick >= interval {
		d.lastTick = at
	}
}

// lateness is how late this node's heartbeats were recently. A node with late heartbeats asks others for more time,
// but not for so much that they would notice its death too late.
type lateness struct {
	// latest is the worst of the minute that began at minute, and before the worst of the minute before.
	latest, before, minute time.Duration
}

func (l *lateness) add(at, late time.Duration) {
	if at >= l.minute+time.Minute {
		l.before = l.latest
		l.latest = 0
		l.minute = at
	}
	if late < maxAdaptedHold {
		l.latest = max(l.latest, late)
	}
}

func (l *lateness) worst() time.Duration { return max(l.latest, l.before) }

// maxGrace is how long without a break a watcher that runs too seldom postpones its verdicts.
const maxGrace = time.Second

// grace is a time without verdicts, because this node may be the reason for a silence.
type grace struct {
	from, until time.Duration
	// lateAt is when the last late heartbeat was sent.
	lateAt time.Duration
}

// extendGrace postpones verdicts after this node did not run: packets may wait in a queue, or were lost by a machine
// that stood still. A node that runs too seldom all the time judges nevertheless after maxGrace, by the packets that
// it has read each time it ran. Otherwise it would never notice a death.
func (d *Detector) extendGrace(at, wait time.Duration) {
	g := &d.grace
	if d.lastTick > g.lateAt+d.hold {
		g.from = at // its heartbeats were in time before
	}
	g.lateAt = at
	until := min(at+wait, g.from+maxGrace)
	g.until = max(g.until, until)
}

// send queues a packet, with fresh claims as far as there is room.
func (d *Detector) send(to *peerState, p Packet) {
	if len(p.Claims) < maxClaims {
		p.Claims = d.piggyback(to, p.Claims)
	}
	d.sendExact(to, p)
}

// sendExact queues a packet with the claims that it has.
func (d *Detector) sendExact(to *peerState, p Packet) {
	d.seq++
	p.From = d.self
	p.To = to.id
	p.Boot = d.boot
	p.Seq = d.seq
	p.Hold = d.hold
	p.Watch = to.isWatcher
	p.Heartbeats = d.heartbeats
	p.HearsBadly = d.hearsBadly
	p.HearsNone = d.hearsNone
	d.packets = append(d.packets, p)
}
