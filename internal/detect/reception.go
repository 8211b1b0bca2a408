package detect

import "time"

// The share of a peer's heartbeats that arrive is measured in thousandths, over about half a second: an exponential
// average with one sample each interval.
const (
	fullReception = 1000
	// receptionSamples is the weight of the past in the average.
	receptionSamples = 20
	// cleanRun is how many heartbeats in a row show that a link loses none: silence after them is no loss.
	cleanRun = 80
	// maxLost samples in a row leave nothing of the average before them.
	maxLost = 100

	// goodReception is the least share of a link that is heard well.
	goodReception = 750
	// complaintReception is the share below which a node complains, whatever lossy links are used for.
	complaintReception = 800
	// badReception is the share of all heartbeats together below which a node that hears no other well cannot serve
	// clients either.
	badReception = 250
	// complaintTime is how long a complaint counts: a few heartbeats that carry it may be lost.
	complaintTime = time.Second
)

// reception is the reception of one peer's heartbeats.
type reception struct {
	// share is the present average, and before the average when the peer was last heard.
	share, before int
	// number is the last heartbeat that came. None of the last clean heartbeats was lost.
	number uint16
	clean  int
}

// newReception returns the reception of a peer that begins to send heartbeats to this node.
func newReception(number uint16) reception {
	return reception{share: fullReception, before: fullReception, number: number - 1}
}

// heartbeat takes a sample of each heartbeat since the last one. A sender that did not run lost none, whatever its
// silence looked like: it counts the heartbeats that it sent.
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

// measureReception finds out how well this node hears the peers that send heartbeats to it. A node that hears badly
// and is faulty itself steps aside.
func (d *Detector) measureReception(at time.Duration) {
	all := d.sampleReception(at)
	hearsNoneWell := all.peers > 0 && all.best < goodReception
	if hearsNoneWell {
		d.badUntil = at
	}

	hardlyHears := all.sum < badReception*all.peers || all.isClean && d.link.othersHear(at)
	d.hearsBadly = hearsNoneWell && hardlyHears && d.isFaulty(at, all.peers)
	if d.hearsBadly {
		d.stepAside(at, false)
	}
	if d.own.Status == HoldDown && d.pathFails(at) {
		d.own.holdDown(at, holdDownTime) // the others cannot hear that the hold-down ends
	}

	_, heard := d.countHeard(at)
	d.hearsSome = d.hearsWell(at) && !d.hasComplaints(at, lostAt)
	// A node that has stepped aside has told the others already.
	d.hearsNone = all.peers > 1 && heard == 0 && d.own.Status == Alive && at >= d.grace.until
}

// totalReception is the reception of all living peers that send heartbeats to this node.
type totalReception struct {
	// peers is their number, best the best share of any, and sum the sum of the shares.
	peers, best, sum int
	// isClean reports whether any of them lost no heartbeat recently.
	isClean bool
}

// sampleReception takes a sample of each silent peer, and returns the reception of all.
func (d *Detector) sampleReception(at time.Duration) (all totalReception) {
	for _, p := range d.watching {
		if !p.watched || !d.status(at, p).Living() {
			continue
		}
		if at-p.lastHeard > p.hold {
			p.reception.sample(0)
		}
		all.peers++
		all.best = max(all.best, p.reception.share)
		all.sum += p.reception.share
		all.isClean = all.isClean || p.reception.clean >= cleanRun
	}

	return all
}

// isFaulty reports whether a silence is this node's own fault. The wire decides. Where it shows nothing, a single
// silent peer may be faulty as well as this node. All others may also be dead, which is found out first.
func (d *Detector) isFaulty(at time.Duration, peers int) bool {
	link := d.link
	worksNow := link.worksAt != 0 && at-link.worksAt < complaintTime && link.worksAt >= link.failsAt
	failsNow := link.failsAt != 0 && at-link.failsAt < complaintTime
	switch {
	case worksNow:
		return false
	case link.othersHear(at):
		return true
	case link.isDivided(at):
		return false
	case failsNow || d.linkFails():
		return true
	}

	_, heard := d.countHeard(at)

	return peers > 1 && heard > 0
}

// hearsWell reports whether a machine that this node does not hear is really silent. Another node that is heard shows
// that. Where there is only one other node, the wire does.
func (d *Detector) hearsWell(at time.Duration) bool { return d.hearsWellWithout(at, nil) }

// hearsWellWithout reports whether this node hears well, without counting one peer.
func (d *Detector) hearsWellWithout(at time.Duration, without *peerState) bool {
	if at < d.grace.until {
		return false
	}

	others := 0
	for _, p := range d.watching {
		if !p.watched || p == without {
			continue
		}
		if p.reception.share >= goodReception && at-p.lastHeard <= p.hold {
			return true
		}
		others++
	}
	linkWorks := d.link.worksAt > d.link.failsAt && at-d.link.worksAt < complaintTime

	return without == nil && others <= 1 && linkWorks
}

// countHeard returns how many peers are heard at this moment, and how many of them hear well and so are able to
// judge.
func (d *Detector) countHeard(at time.Duration) (able, all int) {
	for _, p := range d.ring {
		if p.lastHeard == 0 || at-p.lastHeard >= p.hold {
			continue
		}
		all++
		if !p.hearsBadly {
			able++
		}
	}

	return able, all
}

// lastHeard returns when this node last heard any other speaker.
func (d *Detector) lastHeard() (last time.Duration) {
	for _, p := range d.ring {
		last = max(last, p.lastHeard)
	}

	return last
}

// isAlone reports whether this node hears no other speaker at this moment that is able to judge.
func (d *Detector) isAlone(at time.Duration) bool {
	able, _ := d.countHeard(at)

	return able == 0 && len(d.ring) > 0
}

// hasLossFrom reports whether this node hears a peer badly and others well.
func (d *Detector) hasLossFrom(at time.Duration, p *peerState) bool {
	return p.watched && p.reception.share < complaintReception && d.hearsWellWithout(at, p)
}

// minAccusers is how many nodes must agree about another one, where there are as many.
const minAccusers = 2

// hasComplaints reports whether two others that hear well complained about this node recently, or all others where
// there are fewer. latest returns when a peer last complained.
func (d *Detector) hasComplaints(at time.Duration, latest func(*peerState) time.Duration) bool {
	if d.complainedAt == 0 || at-d.complainedAt >= complaintTime {
		return false // the usual case: there may be a thousand nodes on each of many links
	}

	accusers, others := 0, 0
	for _, p := range d.ring {
		if !d.status(at, p).Living() && !p.private {
			continue
		}
		others++
		last := latest(p)
		if last != 0 && at-last < complaintTime {
			accusers++
		}
	}

	return accusers > 0 && accusers >= min(minAccusers, others)
}

func complainedAt(p *peerState) time.Duration { return p.complainedAt }
func lostAt(p *peerState) time.Duration       { return p.lostAt }
func gaveUpAt(p *peerState) time.Duration     { return p.gaveUpAt }
