package heartbeat

import "time"

// Reception is the share of a peer's heartbeats that arrive, in thousandths, over
// about half a second: an exponential average with one sample each interval.
const (
	fullReception = 1000
	// receptionSamples is the weight of the past in the average.
	receptionSamples = 20
	// cleanRun is how many heartbeats in a row show a link that loses none: silence after them is no loss.
	cleanRun = 80
	// maxLost samples in a row leave nothing of what was before.
	maxLost = 100
	// goodReception and more is good. Less than complaintReception is worth a complaint, whatever lossy links are
	// used for. A node that hears nobody well, and all together worse than badReception, cannot serve clients either.
	goodReception      = 750
	complaintReception = 800
	badReception       = 250
	// complaintTime is how long a complaint counts: a few heartbeats that carry it may be lost.
	complaintTime = time.Second
)

// reception of one peer's heartbeats.
type reception struct {
	share int
	// before is the share when it was heard last.
	before int
	// number of the last heartbeat that came. None of the last clean ones was lost.
	number uint16
	clean  int
}

// newReception is that of a peer that begins to send heartbeats to this node.
func newReception(number uint16) reception {
	return reception{share: fullReception, before: fullReception, number: number - 1}
}

// heartbeat takes a sample of each heartbeat since the last one. A sender that did not run lost none, whatever
// its silence was taken for: it counts what it sent.
func (r *reception) heartbeat(number uint16) {
	r.share = r.before
	r.clean++
	for range min(int(number-r.number)-1, maxLost) {
		r.sample(0)
		r.clean = 0
	}
	r.sample(fullReception)
	r.number, r.before = number, r.share
}

func (r *reception) sample(value int) { r.share += (value - r.share) / receptionSamples }

// measure finds out how well this node hears those that send it heartbeats. The node steps back if it hears badly and
// is itself at fault.
func (d *detector) measure(now time.Duration) {
	best, sum, watched, isClean := 0, 0, 0, false
	for _, p := range d.watching {
		if !p.watched || !d.status(now, p).Living() {
			continue
		}
		if now-p.lastHeard > p.hold {
			p.reception.sample(0)
		}
		best = max(best, p.reception.share)
		sum += p.reception.share
		isClean = isClean || p.reception.clean >= cleanRun
		watched++
	}
	poor := watched > 0 && best < goodReception
	if poor {
		d.badUntil = now
	}
	hardlyHears := sum < badReception*watched || isClean && d.link.othersHear(now)
	d.hearsBadly = poor && hardlyHears && d.atFault(now, watched)
	if d.hearsBadly {
		d.stepBack(now, false)
	}
	if d.own.status == HoldDown && d.pathFails(now) {
		d.own.holdDown(now, holdDownTime) // the others cannot hear that it ends
	}
	// One that has stepped back has told the others already.
	_, heard := d.heard(now)
	d.hearsSome = d.hearsWell(now)
	d.hearsNone = watched > 1 && heard == 0 && d.own.status == Alive && now >= d.grace.until
}

// atFault decides whether a silence is this node's own. The wire knows. Where it shows nothing, a single peer that is
// not heard may be at fault as well as this node. All others may also be dead, which is found out first.
func (d *detector) atFault(now time.Duration, watched int) bool {
	switch l := d.link; {
	case l.worksAt != 0 && now-l.worksAt < complaintTime && l.worksAt >= l.failsAt:
		return false
	case l.othersHear(now):
		return true
	case l.isDivided(now):
		return false
	case l.failsAt != 0 && now-l.failsAt < complaintTime || d.linkFails():
		return true
	}
	_, heard := d.heard(now)
	return watched > 1 && heard > 0
}

// hearsWell: what this node does not hear is not there. Another node shows that; where there is only one, the wire
// does.
func (d *detector) hearsWell(now time.Duration) bool { return d.hearsWellBeside(now, nil) }

// hearsWellBeside reports whether this node hears well without a peer.
func (d *detector) hearsWellBeside(now time.Duration, beside *peer) bool {
	if now < d.grace.until {
		return false
	}
	others := 0
	for _, p := range d.watching {
		if !p.watched || p == beside {
			continue
		}
		if p.reception.share >= goodReception && now-p.lastHeard <= p.hold {
			return true
		}
		others++
	}
	return beside == nil && others <= 1 && d.link.worksAt > d.link.failsAt && now-d.link.worksAt < complaintTime
}

// alone: at this moment this node hears no other speaker that is able to judge.
func (d *detector) alone(now time.Duration) bool {
	able, _ := d.heard(now)
	return able == 0 && len(d.ring) > 0
}

// hearsBadlyOf: p is heard badly, and others are heard well.
func (d *detector) hearsBadlyOf(now time.Duration, p *peer) bool {
	return p.watched && p.reception.share < complaintReception && d.hearsWellBeside(now, p)
}

// complained reports whether two others that hear well complained of this node lately, or all others if these
// are fewer; at returns when one did.
func (d *detector) complained(now time.Duration, at func(*peer) time.Duration) bool {
	complaints, others := 0, 0
	for _, p := range d.ring {
		if !d.status(now, p).Living() && !p.private {
			continue
		}
		others++
		if t := at(p); t != 0 && now-t < complaintTime {
			complaints++
		}
	}
	return complaints > 0 && complaints >= min(accusers, others)
}

func complainedAt(p *peer) time.Duration { return p.complainedAt }
func lostAt(p *peer) time.Duration       { return p.lostAt }
func gaveUpAt(p *peer) time.Duration     { return p.gaveUpAt }
