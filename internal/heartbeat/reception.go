package heartbeat

import "time"

// Receipt is the share of the beats of a peer that arrive, in thousandths, over
// about half a second: an exponential average with one sample each interval.
const (
	fullReception = 1000
	// receiptSamples is the weight of the past in the average.
	receptionSamples = 10
	// cleanBeats in a row tell a link that loses none: silence after them is no loss.
	cleanRun = 40
	// mostLost samples in a row leave nothing of what was before.
	maxLost = 50
	// wellReceipt and more is good; less than poorReceipt is not, whatever lossy links are used for.
	// Who hears nobody well, and all together worse than badReceipt, cannot serve clients either.
	goodReception = 750
	complaintReception = 800
	badReception  = 250
	// complaintTime is how long a complaint counts: a few beats that say so may be lost.
	complaintTime = time.Second
)

// receipt of one peer's beats.
type reception struct {
	share int
	// before is the share when it was heard last.
	before int
	// number of the beat that came last; none of the clean last ones was lost.
	number uint16
	clean  int
}

// newReceipt is that of a peer that begins to beat at us.
func newReception(number uint16) reception {
	return reception{share: fullReception, before: fullReception, number: number - 1}
}

// beat takes a sample of each beat since the last one. That a sender did not run is no loss, whatever it
// was taken for meanwhile: it counts what it sent.
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

// measure finds out how well this node hears those that beat at it, and has it step back where it
// is itself that hears badly.
func (d *detector) measure(now time.Duration) {
	best, sum, watched := 0, 0, 0
	for _, p := range d.watching {
		if !p.watched || !d.status(now, p).Living() {
			continue
		}
		if now-p.lastHeard > p.hold {
			p.reception.sample(0)
		}
		best = max(best, p.reception.share)
		sum += p.reception.share
		watched++
	}
	if d.best = best; best < goodReception && watched > 0 {
		d.badUntil = now
	}
	if watched == 0 {
		d.best = fullReception // nobody should be heard
	}
	if d.deaf = d.best < goodReception && sum < badReception*watched && d.atFault(now, watched); d.deaf {
		d.stepBack(now, d.holdDown)
	}
}

// atFault decides whether a silence is this node's own. The wire knows. Where it says nothing, one
// peer that is not heard may be at fault as well as this node, and all others may be dead, which is found out first.
func (d *detector) atFault(now time.Duration, watched int) bool {
	switch {
	case d.wireGood != 0 && now-d.wireGood < complaintTime && d.wireGood >= d.wireBad:
		return false
	case d.wireBad != 0 && now-d.wireBad < complaintTime:
		return true
	}
	_, heard := d.heard(now)
	return watched > 1 && heard > 0
}

// hearsWell: what this node does not hear is not there to be heard. Another node shows that; where there is only one,
// the wire does.
func (d *detector) hearsWell(now time.Duration) bool { return d.hearsBeside(now, nil) }

// hearsBeside reports whether this node hears well without a peer.
func (d *detector) hearsBeside(now time.Duration, beside *peer) bool {
	if now < d.graceUntil {
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
	return beside == nil && others <= 1 && d.wireGood > d.wireBad && now-d.wireGood < complaintTime
}

// alone: this node hears no other speaker at this moment that is able to judge.
func (d *detector) alone(now time.Duration) bool {
	able, _ := d.heard(now)
	return able == 0 && len(d.ring) > 0
}

// poorly: p is heard badly, and others are heard well.
func (d *detector) complainsOf(now time.Duration, p *peer) bool {
	return p.watched && p.reception.share < complaintReception && d.hearsBeside(now, p)
}

// complained reports whether two others that hear well said so of this node lately, or all others if these
// are fewer; said returns when one did.
func (d *detector) complained(now time.Duration, said func(*peer) time.Duration) bool {
	complaints, others := 0, 0
	for _, p := range d.ring {
		if !d.status(now, p).Living() && !p.private {
			continue
		}
		others++
		if at := said(p); at != 0 && now-at < complaintTime {
			complaints++
		}
	}
	return complaints > 0 && complaints >= min(accusers, others)
}

func complainedAt(p *peer) time.Duration   { return p.complainedAt }
func gaveUpAt(p *peer) time.Duration { return p.gaveUpAt }
