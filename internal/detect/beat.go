package detect

import (
	"slices"
	"time"
)

// sendHeartbeats does what happens once each interval.
func (d *Detector) sendHeartbeats(at time.Duration) {
	d.noteLateness(at)
	d.measureReception(at)
	d.ageOwnClaim(at)
	d.watching = slices.DeleteFunc(d.watching, func(p *peerState) bool {
		p.listed = p.watched || p.accused
		return !p.listed
	})
	d.chooseWatchers(at)

	d.heartbeats++
	if len(d.ring) > 0 {
		d.dissemination.probed = (d.dissemination.probed + 1) % len(d.ring)
	}
	for i, p := range d.ring {
		out := Packet{Heartbeat: p.isWatcher, Complains: d.hasLossFrom(at, p)}
		out.Lost = out.Complains && p.reception.share < badReception && !p.answeredRecently(at)
		if i == d.dissemination.probed {
			// In each interval one peer in turn gets a probe. So sessions begin before they are needed, lost claims
			// arrive, and a peer beyond a healed partition is found.
			out.Claims = d.antiEntropy()
		} else if !out.Heartbeat && !out.Complains {
			continue
		}
		d.send(p, out)
	}
}

// noteLateness adapts this node to the time that has passed since its last heartbeats.
func (d *Detector) noteLateness(at time.Duration) {
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
	wanted := 4*d.timers.Interval + d.lateness.worst()*3/2
	d.hold = max(d.baseHold, min(wanted, maxAdaptedHold))

	// Keep the rhythm unless it is lost.
	d.lastTick += d.timers.Interval
	if at-d.lastTick >= d.timers.Interval {
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
		*l = lateness{before: l.latest, minute: at}
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
	g.until = max(g.until, min(at+wait, g.from+maxGrace))
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
	p.From, p.To = d.self, to.id
	p.Boot, p.Seq = d.boot, d.seq
	p.Hold, p.Watch = d.hold, to.isWatcher
	p.Heartbeats = d.heartbeats
	p.HearsBadly, p.HearsNone = d.hearsBadly, d.hearsNone
	d.packets = append(d.packets, p)
}
