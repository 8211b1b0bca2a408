package heartbeat

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
	fresh []id
	// urgent ones go to everybody at broadcastAt, too.
	urgent      []id
	broadcastAt time.Duration
	// probed is the index of the last peer that got a probe, repeated that of the last one whose claim was repeated.
	probed, repeated int
}

// handle takes one claim, question or answer out of a packet.
func (d *detector) handle(now time.Duration, from *peer, c claim) {
	if c.about == d.self {
		if c.isVerdict() {
			d.refute(now, from, c)
		}
		if c.status == givenUp {
			if from.gaveUpAt = now; d.complained(now, gaveUpAt) {
				d.stepBack(now, d.parted(now, from))
			}
		}
		if c.status == Dead && d.own.status == HoldDown {
			// The sender does not know better yet: it does not hear this node.
			d.own.holdDown(now, holdDownTime)
		}
		return
	}
	about := d.peers[c.about]
	switch {
	case about == nil, c.status == givenUp:
	case c.status == ask:
		d.answerAbout(now, from, about)
	case c.isVerdict():
		d.adopt(now, about, c)
	default:
		d.answered(now, from, about, c)
	}
}

// adopt takes another node's claim over, unless this node knows better.
func (d *detector) adopt(now time.Duration, about *peer, c claim) {
	// A private claim gives way to what others say of the same incarnation.
	yields := about.private && c.incarnation == about.incarnation && c.status > HoldDown
	if !c.over(about.claim) && !yields {
		return
	}
	fresh := about.lastHeard != 0 && now-about.lastHeard < about.hold*3/4
	if (c.status == Dead || c.status == SpeakerDown) && fresh && now >= d.grace.until {
		return
	}
	if c.status != about.status {
		about.suspicion = nil
	}
	if c.status == Dead || c.status == Left {
		about.watched = false
	}
	about.accused = about.accused && c.status == Dead
	if c.status == SpeakerDown && about.watched {
		about.accused, about.lastAlive = true, now // its kernel lives
		if !about.private {
			about.former = about.claim
		}
	}
	about.set(now, c, false)
	d.disseminate(about.id)
}

// refute answers a claim about this node itself that is not its own.
func (d *detector) refute(now time.Duration, from *peer, c claim) {
	if !c.over(d.own.claim) {
		return
	}
	if c.status == Dead && now > d.born+newTime {
		d.counts.refuted.Add(1) // the network lost this node, which was there
	}
	if c.status != Dead || !d.parted(now, from) {
		d.own.deaths = max(d.own.deaths, c.deaths)
	}
	if c.status == Dead || d.own.deaths > 0 && d.own.diedAt == 0 {
		d.own.diedAt = now
	}
	if c.status == Dead {
		d.own.holdDown(now, d.holdTime())
	}
	d.claimSelf(now, c.incarnation)
}

// parted: each of two sides lost the other, not this node alone the others. The peer is of the other one, which this
// side gave up.
func (d *detector) parted(now time.Duration, from *peer) bool {
	return from.status == Dead || from.status == HoldDown && now-from.claimedAt < togetherTime
}

// holdTime is how long this node is held down: it doubles with each further death that counts.
func (d *detector) holdTime() time.Duration {
	return min(holdDownTime<<(min(max(d.own.deaths, 2), 16)-2), d.maxHoldDown)
}

// stepBack has this node take nothing for a while, by its own claim. That counts as a death, unless parted: others gave
// it up, too.
func (d *detector) stepBack(now time.Duration, parted bool) {
	if !parted {
		d.own.deaths = d.own.died()
	}
	d.own.diedAt = now
	d.own.holdDown(now, d.holdTime())
	if d.own.status == Alive {
		d.claimSelf(now, d.own.incarnation)
	}
}

// claimSelf broadcasts what this node is, after a claim of that incarnation.
func (d *detector) claimSelf(now time.Duration, after uint32) {
	d.own.incarnation, d.own.status = next(after), Alive
	if now < d.own.holdDownUntil {
		d.own.status = HoldDown
	}
	d.broadcast(d.self)
}

// ageSelf ends the hold-down, and forgets deaths after a long life.
func (d *detector) ageSelf(now time.Duration) {
	if d.complained(now, lostAt) {
		d.stepBack(now, false)
	}
	if d.own.status == HoldDown && d.complained(now, complainedAt) {
		d.own.holdDown(now, holdDownTime)
	}
	over := d.own.status == HoldDown && now >= d.own.holdDownUntil
	forgiven := d.own.deaths > 0 && now >= d.own.diedAt+forgiveTime
	if forgiven {
		d.own.deaths = 0
	}
	if over || forgiven {
		d.claimSelf(now, d.own.incarnation)
	}
}

// leave says goodbye to all.
func (d *detector) leave(now time.Duration) {
	d.own.status = Left
	d.broadcast(d.self)
	d.spread.broadcastAt = now
	d.sendBroadcast(now)
}

// statement returns the claim about a node as it may be sent; nil where there is none.
func (d *detector) statement(i id) *statement {
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
func (d *detector) disseminate(i id) {
	d.version++
	d.statement(i).transmits = 10 * bits.Len(uint(len(d.ring)+1))
	if !slices.Contains(d.spread.fresh, i) {
		d.spread.fresh = append(d.spread.fresh, i)
	}
}

// broadcast has a claim sent to everybody at once, too.
func (d *detector) broadcast(i id) {
	d.disseminate(i)
	d.spread.urgent = append(d.spread.urgent, i)
}

// piggyback adds to claims what the receiver may not know yet: this node's opinion of it if that is nothing good, then
// what is fresh, by turns.
func (d *detector) piggyback(to *peer, claims []claim) []claim {
	switch {
	case to.private:
		claims = append(claims, claim{about: to.id, status: givenUp})
	case to.status > HoldDown:
		claims = append(claims, to.claim)
	}
	for range min(len(d.spread.fresh), maxPiggybacked, maxClaims-len(claims)) {
		i := d.spread.fresh[0]
		d.spread.fresh = d.spread.fresh[1:]
		s := d.statement(i)
		if s == nil {
			continue
		}
		claims = append(claims, s.claim)
		if s.transmits--; s.transmits > 0 {
			d.spread.fresh = append(d.spread.fresh, i)
		}
	}
	return claims
}

// antiEntropy returns some of all claims, by turns.
func (d *detector) antiEntropy() []claim {
	var claims []claim
	for n := 0; n < len(d.ring) && len(claims) < maxAntiEntropy; n++ {
		d.spread.repeated = (d.spread.repeated + 1) % len(d.ring)
		if p := d.ring[d.spread.repeated]; p.status != Unknown && !p.private {
			claims = append(claims, p.claim)
		}
	}
	if d.own.incarnation > 0 {
		claims = append(claims, d.own.claim)
	}
	return claims
}

// sendBroadcast sends what is urgent to everybody, and what else is fresh as far as there is room.
func (d *detector) sendBroadcast(now time.Duration) {
	if len(d.spread.urgent) == 0 || now < d.spread.broadcastAt {
		return
	}
	d.spread.broadcastAt = now + broadcastInterval
	var claims []claim
	for _, i := range slices.Concat(d.spread.urgent, d.spread.fresh) {
		if len(claims) == maxClaims {
			break
		}
		if s := d.statement(i); s != nil && !slices.Contains(claims, s.claim) {
			claims = append(claims, s.claim)
		}
	}
	d.spread.urgent = d.spread.urgent[:0]
	for _, p := range d.ring {
		d.sendOnly(p, packet{claims: claims})
	}
}
