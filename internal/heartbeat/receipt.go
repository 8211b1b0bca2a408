package heartbeat

import "time"

// Receipt is the share of the beats of a peer that arrive, in thousandths, over
// about half a second: an exponential average with one sample each interval.
const (
	fullReceipt = 1000
	// receiptSamples is the weight of the past in the average.
	receiptSamples = 10
	// cleanBeats in a row tell a link that loses none: silence after them is no loss.
	cleanBeats = 40
	// mostLost samples in a row leave nothing of what was before.
	mostLost = 50
	// wellReceipt and more is good; less than poorReceipt is not, whatever lossy links are used for.
	// Who hears nobody well, and all together worse than badReceipt, cannot serve clients either.
	wellReceipt = 750
	poorReceipt = 800
	badReceipt  = 250
	// complaintTime is how long a complaint counts: a few beats that say so may be lost.
	complaintTime = time.Second
)

// receipt of one peer's beats.
type receipt struct {
	share int
	// before is the share when it was heard last.
	before int
	// number of the beat that came last; none of the clean last ones was lost.
	number uint16
	clean  int
}

// newReceipt is that of a peer that begins to beat at us.
func newReceipt(number uint16) receipt {
	return receipt{share: fullReceipt, before: fullReceipt, number: number - 1}
}

// beat takes a sample of each beat since the last one. That a sender did not run is no loss, whatever it
// was taken for meanwhile: it counts what it sent.
func (r *receipt) beat(number uint16) {
	r.share = r.before
	r.clean++
	for range min(int(number-r.number)-1, mostLost) {
		r.sample(0)
		r.clean = 0
	}
	r.sample(fullReceipt)
	r.number, r.before = number, r.share
}

func (r *receipt) sample(value int) { r.share += (value - r.share) / receiptSamples }

// measure finds out how well this node hears those that beat at it, and has it step back where it
// is itself that hears badly.
func (d *detector) measure(now time.Duration) {
	best, sum, watched := 0, 0, 0
	for _, p := range d.watching {
		if !p.watched || !d.status(now, p).Living() {
			continue
		}
		if now-p.lastHeard > p.hold {
			p.receipt.sample(0)
		}
		best = max(best, p.receipt.share)
		sum += p.receipt.share
		watched++
	}
	if d.best = best; best < wellReceipt && watched > 0 {
		d.badUntil = now
	}
	if watched == 0 {
		d.best = fullReceipt // nobody should be heard
	}
	if d.deaf = d.best < wellReceipt && sum < badReceipt*watched && d.atFault(now, watched); d.deaf {
		d.holdSelf(now, d.holdDown)
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
		if p.receipt.share >= wellReceipt && now-p.lastHeard <= p.hold {
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
func (d *detector) poorly(now time.Duration, p *peer) bool {
	return p.watched && p.receipt.share < poorReceipt && d.hearsBeside(now, p)
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

func poorAt(p *peer) time.Duration   { return p.poorAt }
func lostAt(p *peer) time.Duration   { return p.lostAt }
func missedAt(p *peer) time.Duration { return p.missedAt }
