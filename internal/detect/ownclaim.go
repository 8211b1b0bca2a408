package detect

import "time"

// newRunTime is how long a new run of the speaker may hear about the end of the run before.
const newRunTime = 5 * time.Second

// ownClaim is the claim of this node about itself.
type ownClaim struct {
	heldClaim
	// holdDownUntil is when its hold-down ends. diedAt is when it last heard about its death.
	holdDownUntil, diedAt time.Duration
	// claimedDeadAt is when another node last claimed that it is dead, whether it refuted that before or not, and
	// claimedDeadSince when others began to do so again and again.
	claimedDeadAt, claimedDeadSince time.Duration
}

// holdDown extends the hold-down to a time from a moment on.
func (o *ownClaim) holdDown(at, hold time.Duration) {
	o.holdDownUntil = max(o.holdDownUntil, at+hold)
}

// handleOwnClaim takes a claim of another node about this one.
func (d *Detector) handleOwnClaim(at time.Duration, from *peerState, c NodeClaim) {
	if c.isAssertion() {
		d.refute(at, from, c)
	}
	switch c.Status {
	case privateDeath:
		from.gaveUpAt, d.complainedAt = at, at
		if d.hasComplaints(at, gaveUpAt) {
			d.stepAside(at, d.isPartitioned(at, from))
		}
	case Dead:
		d.noteClaimedDead(at)
	}
}

// noteClaimedDead notes that another node claims that this one is dead.
func (d *Detector) noteClaimedDead(at time.Duration) {
	if !d.isGivenUp(at) {
		d.own.claimedDeadSince = at
	}
	d.own.claimedDeadAt = at
	if d.own.Status == HoldDown {
		// The sender has not heard the refutation yet: it does not hear this node.
		d.own.holdDown(at, holdDownTime)
	}
}

// isGivenUp reports whether others go on to claim that this node is dead: they do not hear its refutation.
func (d *Detector) isGivenUp(at time.Duration) bool {
	last := d.own.claimedDeadAt

	return last != 0 && at-last < complaintTime
}

// refute answers a claim about this node that it did not make itself.
func (d *Detector) refute(at time.Duration, from *peerState, c NodeClaim) {
	if !c.supersedes(d.own.NodeClaim) {
		return
	}

	own := &d.own
	isDeath := c.Status == Dead
	wasRunning := at > d.startedAt+newRunTime
	if isDeath && wasRunning {
		d.stats.Refuted++ // the network lost this node
	}
	if !isDeath || !d.isPartitioned(at, from) {
		own.Deaths = max(own.Deaths, c.Deaths)
	}

	isFirst := own.Deaths > 0 && own.diedAt == 0
	if isDeath || isFirst {
		own.diedAt = at
	}
	if isDeath {
		length := d.holdDownLength()
		own.holdDown(at, length)
	}
	d.claimSelf(at, c.Incarnation)
}

// isPartitioned reports whether each of two sides lost the other, rather than this node alone the others. The peer is
// on the other side, which this side gave up.
func (d *Detector) isPartitioned(at time.Duration, from *peerState) bool {
	claimAge := at - from.claimedAt
	isBack := from.Status == HoldDown && claimAge < togetherTime

	return from.Status == Dead || isBack
}

// holdDownLength returns how long this node is held down. It doubles with each further death that counts.
func (d *Detector) holdDownLength() time.Duration {
	deaths := min(max(d.own.Deaths, 2), 16)
	length := holdDownTime << (deaths - 2)

	return min(length, d.maxHoldDown)
}

// stepAside has this node take nothing for a while, by its own claim. That counts as a death, except in a partition,
// where others were given up too.
func (d *Detector) stepAside(at time.Duration, isPartitioned bool) {
	if !isPartitioned {
		d.own.Deaths = d.own.nextDeaths()
	}
	d.own.diedAt = at
	d.own.holdDown(at, d.holdDownLength())
	if d.own.Status == Alive {
		d.claimSelf(at, d.own.Incarnation)
	}
}

// claimSelf broadcasts the status of this node, with the incarnation after another one.
func (d *Detector) claimSelf(at time.Duration, after uint32) {
	own := &d.own
	own.Incarnation = nextIncarnation(after)
	own.Status = Alive
	if at < own.holdDownUntil {
		own.Status = HoldDown
	}
	d.broadcast(d.self)
}

// ageOwnClaim ends the hold-down, and forgets deaths after a long life.
func (d *Detector) ageOwnClaim(at time.Duration) {
	own := &d.own
	if d.hasComplaints(at, lostAt) {
		d.stepAside(at, false)
	}
	isHeld := own.Status == HoldDown
	if isHeld && d.hasComplaints(at, complainedAt) {
		own.holdDown(at, holdDownTime)
	}

	isOver := isHeld && at >= own.holdDownUntil
	isForgiven := own.Deaths > 0 && at >= own.diedAt+forgiveTime
	if isForgiven {
		own.Deaths = 0
	}
	if isOver || isForgiven {
		d.claimSelf(at, own.Incarnation)
	}
}

// Leave says goodbye to all nodes.
func (d *Detector) Leave(at time.Duration) {
	d.own.Status = Left
	d.broadcast(d.self)
	d.dissemination.broadcastAt = at
	d.sendBroadcast(at)
}
