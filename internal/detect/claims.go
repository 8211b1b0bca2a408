package detect

import (
	"math/bits"
	"slices"
	"time"
)

const (
	// broadcastInterval is the least time between two broadcasts.
	broadcastInterval = 10 * time.Millisecond
	// maxPiggybacked is how many fresh claims a packet takes along, maxAntiEntropy how many old ones a probe does.
	maxPiggybacked = 24
	maxAntiEntropy = 24
	// newTime is how long a run may hear of the end of the one before.
	newTime = 5 * time.Second
)

// spread is what is still to be said to others.
type spread struct {
	// fresh claims are piggybacked on other packets, by turns.
	fresh []NodeID
	// urgent ones go to everybody at broadcastAt, too.
	urgent      []NodeID
	broadcastAt time.Duration
	// probed is the index of the last peer that got a probe, repeated the index of the last one whose claim was repeated.
	probed, repeated int
}

// handle takes one claim, question or answer out of a packet.
func (d *Detector) handle(at time.Duration, from *peerState, c NodeClaim) {
	if c.About == d.self {
		if c.isVerdict() {
			d.refute(at, from, c)
		}
		if c.Status == givenUp {
			if from.gaveUpAt = at; d.complained(at, gaveUpAt) {
				d.stepBack(at, d.parted(at, from))
			}
		}
		if c.Status == Dead && d.own.Status == HoldDown {
			// The sender does not know better yet: it does not hear this node.
			d.own.holdDown(at, holdDownTime)
		}
		return
	}
	about := d.peers[c.About]
	switch {
	case about == nil, c.Status == givenUp:
	case c.Status == ask:
		d.answerAbout(at, from, about)
	case c.isVerdict():
		d.adopt(at, about, c)
	default:
		d.answered(at, from, about, c)
	}
}

// adopt takes another node's claim over, unless this node knows better.
func (d *Detector) adopt(at time.Duration, about *peerState, c NodeClaim) {
	// A private claim gives way to what others say of the same incarnation.
	yields := about.private && c.Incarnation == about.Incarnation && c.Status > HoldDown
	if !c.over(about.NodeClaim) && !yields {
		return
	}
	fresh := about.lastHeard != 0 && at-about.lastHeard < about.hold*3/4
	if (c.Status == Dead || c.Status == SpeakerDown) && fresh && at >= d.grace.until {
		return
	}
	if c.Status != about.Status {
		about.suspicion = nil
	}
	if c.Status == Dead || c.Status == Left {
		about.watched = false
	}
	about.accused = about.accused && c.Status == Dead
	if c.Status == SpeakerDown && about.watched {
		about.accused, about.lastAlive = true, at // its kernel lives
		if !about.private {
			about.former = about.NodeClaim
		}
	}
	about.set(at, c, false)
	d.disseminate(about.id)
}

// refute answers a claim about this node itself that is not its own.
func (d *Detector) refute(at time.Duration, from *peerState, c NodeClaim) {
	if !c.over(d.own.NodeClaim) {
		return
	}
	if c.Status == Dead && at > d.born+newTime {
		d.stats.Refuted++ // the network lost this node, which was there
	}
	if c.Status != Dead || !d.parted(at, from) {
		d.own.Deaths = max(d.own.Deaths, c.Deaths)
	}
	if c.Status == Dead || d.own.Deaths > 0 && d.own.diedAt == 0 {
		d.own.diedAt = at
	}
	if c.Status == Dead {
		d.own.holdDown(at, d.holdTime())
	}
	d.claimSelf(at, c.Incarnation)
}

// parted: each of two sides lost the other, not this node alone the others. The peer is of the other one, which this
// side gave up.
func (d *Detector) parted(at time.Duration, from *peerState) bool {
	return from.Status == Dead || from.Status == HoldDown && at-from.claimedAt < togetherTime
}

// holdTime is how long this node is held down: it doubles with each further death that counts.
func (d *Detector) holdTime() time.Duration {
	return min(holdDownTime<<(min(max(d.own.Deaths, 2), 16)-2), d.maxHoldDown)
}

// stepBack has this node take nothing for a while, by its own claim. That counts as a death, unless parted: others gave
// it up, too.
func (d *Detector) stepBack(at time.Duration, parted bool) {
	if !parted {
		d.own.Deaths = d.own.died()
	}
	d.own.diedAt = at
	d.own.holdDown(at, d.holdTime())
	if d.own.Status == Alive {
		d.claimSelf(at, d.own.Incarnation)
	}
}

// claimSelf broadcasts what this node is, after a claim of that incarnation.
func (d *Detector) claimSelf(at time.Duration, after uint32) {
	d.own.Incarnation, d.own.Status = next(after), Alive
	if at < d.own.holdDownUntil {
		d.own.Status = HoldDown
	}
	d.broadcast(d.self)
}

// ageSelf ends the hold-down, and forgets deaths after a long life.
func (d *Detector) ageSelf(at time.Duration) {
	if d.complained(at, lostAt) {
		d.stepBack(at, false)
	}
	if d.own.Status == HoldDown && d.complained(at, complainedAt) {
		d.own.holdDown(at, holdDownTime)
	}
	over := d.own.Status == HoldDown && at >= d.own.holdDownUntil
	forgiven := d.own.Deaths > 0 && at >= d.own.diedAt+forgiveTime
	if forgiven {
		d.own.Deaths = 0
	}
	if over || forgiven {
		d.claimSelf(at, d.own.Incarnation)
	}
}

// Leave says goodbye to all.
func (d *Detector) Leave(at time.Duration) {
	d.own.Status = Left
	d.broadcast(d.self)
	d.spread.broadcastAt = at
	d.sendBroadcast(at)
}

// statement returns the claim about a node as it may be sent; nil where there is none.
func (d *Detector) statement(i NodeID) *statement {
	if i == d.self {
		return &d.own.statement
	}
	if p := d.peers[i]; p != nil && !p.private {
		return &p.statement
	}
	return nil
}

// disseminate has a claim piggybacked on so many packets that everybody gets it: each
// heartbeat reaches some nodes, and those pass it on.
func (d *Detector) disseminate(i NodeID) {
	d.version++
	d.statement(i).transmits = 10 * bits.Len(uint(len(d.ring)+1))
	if !slices.Contains(d.spread.fresh, i) {
		d.spread.fresh = append(d.spread.fresh, i)
	}
}

// broadcast has a claim sent to everybody at once, too.
func (d *Detector) broadcast(i NodeID) {
	d.disseminate(i)
	d.spread.urgent = append(d.spread.urgent, i)
}

// piggyback adds to claims what the receiver may not know yet: this node's opinion of it if that is nothing good, then
// what is fresh, by turns.
func (d *Detector) piggyback(to *peerState, claims []NodeClaim) []NodeClaim {
	switch {
	case to.private:
		claims = append(claims, NodeClaim{About: to.id, Status: givenUp})
	case to.Status > HoldDown:
		claims = append(claims, to.NodeClaim)
	}
	for range min(len(d.spread.fresh), maxPiggybacked, maxClaims-len(claims)) {
		i := d.spread.fresh[0]
		d.spread.fresh = d.spread.fresh[1:]
		s := d.statement(i)
		if s == nil {
			continue
		}
		claims = append(claims, s.NodeClaim)
		if s.transmits--; s.transmits > 0 {
			d.spread.fresh = append(d.spread.fresh, i)
		}
	}
	return claims
}

// antiEntropy returns some of all claims, by turns.
func (d *Detector) antiEntropy() []NodeClaim {
	var claims []NodeClaim
	for n := 0; n < len(d.ring) && len(claims) < maxAntiEntropy; n++ {
		d.spread.repeated = (d.spread.repeated + 1) % len(d.ring)
		if p := d.ring[d.spread.repeated]; p.Status != Unknown && !p.private {
			claims = append(claims, p.NodeClaim)
		}
	}
	if d.own.Incarnation > 0 {
		claims = append(claims, d.own.NodeClaim)
	}
	return claims
}

// sendBroadcast sends what is urgent to everybody, and what else is fresh as far as there is room.
func (d *Detector) sendBroadcast(at time.Duration) {
	if len(d.spread.urgent) == 0 || at < d.spread.broadcastAt {
		return
	}
	d.spread.broadcastAt = at + broadcastInterval
	var claims []NodeClaim
	for _, i := range slices.Concat(d.spread.urgent, d.spread.fresh) {
		if len(claims) == maxClaims {
			break
		}
		if s := d.statement(i); s != nil && !slices.Contains(claims, s.NodeClaim) {
			claims = append(claims, s.NodeClaim)
		}
	}
	d.spread.urgent = d.spread.urgent[:0]
	for _, p := range d.ring {
		d.sendOnly(p, Packet{Claims: claims})
	}
}
