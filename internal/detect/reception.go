package detect

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
	// used for. A node that hears no node well, and all together worse than badReception, cannot serve clients either.
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

// newReception is the reception of a peer that begins to send heartbeats to this node.
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
func (d *Detector) measure(at time.Duration) {
	best, sum, watched, isClean := 0, 0, 0, false
	for _, p := range d.watching {
		if !p.watched || !d.status(at, p).Living() {
			continue
		}
		if at-p.lastHeard > p.hold {
			p.reception.sample(0)
		}
		best = max(best, p.reception.share)
		sum += p.reception.share
		isClean = isClean || p.reception.clean >= cleanRun
		watched++
	}
	poor := watched > 0 && best < goodReception
	if poor {
		d.badUntil = at
	}
	hardlyHears := sum < badReception*watched || isClean && d.link.othersHear(at)
	d.hearsBadly = poor && hardlyHears && d.atFault(at, watched)
	if d.hearsBadly {
		d.stepBack(at, false)
	}
	if d.own.Status == HoldDown && d.pathFails(at) {
		d.own.holdDown(at, holdDownTime) // the others cannot hear that it ends
	}
	// A node that has stepped back has told the others already.
	_, heard := d.heard(at)
	d.hearsSome = d.hearsWell(at)
	d.hearsNone = watched > 1 && heard == 0 && d.own.Status == Alive && at >= d.grace.until
}

// atFault decides whether a silence is this node's own. The wire knows. Where it shows nothing, a single peer that is
// not heard may be at fault as well as this node. All others may also be dead, which is found out first.
func (d *Detector) atFault(at time.Duration, watched int) bool {
	switch l := d.link; {
	case l.worksAt != 0 && at-l.worksAt < complaintTime && l.worksAt >= l.failsAt:
		return false
	case l.othersHear(at):
		return true
	case l.isDivided(at):
		return false
	case l.failsAt != 0 && at-l.failsAt < complaintTime || d.linkFails():
		return true
	}
	_, heard := d.heard(at)
	return watched > 1 && heard > 0
}

// hearsWell: what this node does not hear is not there. Another node shows that; where there is only one, the wire
// does.
func (d *Detector) hearsWell(at time.Duration) bool { return d.hearsWellBeside(at, nil) }

// hearsWellBeside reports whether this node hears well without a peer.
func (d *Detector) hearsWellBeside(at time.Duration, beside *peerState) bool {
	if at < d.grace.until {
		return false
	}
	others := 0
	for _, p := range d.watching {
		if !p.watched || p == beside {
			continue
		}
		if p.reception.share >= goodReception && at-p.lastHeard <= p.hold {
			return true
		}
		others++
	}
	return beside == nil && others <= 1 && d.link.worksAt > d.link.failsAt && at-d.link.worksAt < complaintTime
}

// alone: at this moment this node hears no other speaker that is able to judge.
func (d *Detector) alone(at time.Duration) bool {
	able, _ := d.heard(at)
	return able == 0 && len(d.ring) > 0
}

// hearsBadlyOf: p is heard badly, and others are heard well.
func (d *Detector) hearsBadlyOf(at time.Duration, p *peerState) bool {
	return p.watched && p.reception.share < complaintReception && d.hearsWellBeside(at, p)
}

// complained reports whether two others that hear well complained of this node lately, or all others if these
// are fewer; at returns when one did.
func (d *Detector) complained(at time.Duration, last func(*peerState) time.Duration) bool {
	complaints, others := 0, 0
	for _, p := range d.ring {
		if !d.status(at, p).Living() && !p.private {
			continue
		}
		others++
		if t := last(p); t != 0 && at-t < complaintTime {
			complaints++
		}
	}
	return complaints > 0 && complaints >= min(accusers, others)
}

func complainedAt(p *peerState) time.Duration { return p.complainedAt }
func lostAt(p *peerState) time.Duration       { return p.lostAt }
func gaveUpAt(p *peerState) time.Duration     { return p.gaveUpAt }
