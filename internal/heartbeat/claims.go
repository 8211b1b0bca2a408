package heartbeat

import (
	"math/bits"
	"slices"
	"time"
)

const (
	// shoutEvery is the least time between two rounds to everybody.
	broadcastInterval = 10 * time.Millisecond
	// mostTold is how many fresh claims a packet takes along, mostRecited how many old ones a greeting does.
	maxPiggybacked    = 24
	maxAntiEntropy = 24
	// newTime is how long a run may hear of the end of the one before.
	newTime = 5 * time.Second
)

// consider takes one claim, question or answer out of a packet.
func (d *detector) handle(now time.Duration, from *peer, c claim) {
	if c.about == d.self {
		if c.isVerdict() {
			d.refute(now, c)
		}
		if c.status == givenUp {
			if from.gaveUpAt = now; d.complained(now, gaveUpAt) {
				d.stepBack(now, d.holdDown)
			}
		}
		if c.status == Dead && d.own.status == HoldDown {
			// Who says so does not know better yet: it does not hear us.
			d.heldUntil = max(d.heldUntil, now+d.holdDown)
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

// adopt takes another node's claim over, unless we know better.
func (d *detector) adopt(now time.Duration, about *peer, c claim) {
	// What we claim for ourselves alone yields to what others say of the same incarnation.
	yields := about.private && c.incarnation == about.claim.incarnation && c.status > HoldDown
	if !c.over(about.claim) && !yields {
		return
	}
	fresh := about.lastHeard != 0 && now-about.lastHeard < about.hold*3/4
	if (c.status == Dead || c.status == SpeakerDown) && fresh && now >= d.graceUntil {
		return
	}
	if c.status != about.claim.status {
		about.suspicion = nil
	}
	if c.status == Dead || c.status == Left {
		about.watched = false
	}
	about.accused = about.accused && c.status == Dead
	if c.status == SpeakerDown && about.watched {
		about.refusedAt = max(about.refusedAt, now)
	}
	about.claim, about.claimedAt, about.private, about.backAt = c, now, false, 0
	d.disseminate(about.id)
}

// refute answers a claim about this node itself that is not its own.
func (d *detector) refute(now time.Duration, c claim) {
	if !c.over(d.own) {
		return
	}
	if c.status == Dead && now > d.born+newTime {
		// The network lost this node, which was there: it takes nothing until it is heard again, and for a while.
		d.counts.refuted++
		d.heldUntil = max(d.heldUntil, now+d.holdDown)
		d.claimSelf(now, c.incarnation+1)
		return
	}
	d.own.deaths = max(d.own.deaths, c.deaths)
	if d.own.deaths > 0 && d.toldDead == 0 {
		d.toldDead = now
	}
	if c.status == Dead {
		// An earlier run died. If not for the first time, this one may soon die, too.
		d.toldDead = now
		hold := d.maxHoldDown
		if d.own.deaths <= 16 {
			hold = min(hold, d.holdDown<<(max(d.own.deaths, 2)-2))
		}
		d.heldUntil = max(d.heldUntil, now+hold)
	}
	d.claimSelf(now, c.incarnation+1)
}

// holdSelf has this node take nothing for a while: its word is enough.
func (d *detector) stepBack(now, hold time.Duration) {
	d.heldUntil = max(d.heldUntil, now+hold)
	if d.own.status == Alive {
		d.claimSelf(now, d.own.incarnation+1)
	}
}

// claimSelf says to all what this node is.
func (d *detector) claimSelf(now time.Duration, number uint32) {
	d.own.incarnation = number
	d.own.status = Alive
	if now < d.heldUntil {
		d.own.status = HoldDown
	}
	d.broadcast(d.self)
}

// ageSelf ends the hold-down, and forgets deaths after a long life.
func (d *detector) ageSelf(now time.Duration) {
	if d.own.status == HoldDown && d.complained(now, complainedAt) {
		d.heldUntil = max(d.heldUntil, now+d.holdDown)
	}
	over := d.own.status == HoldDown && now >= d.heldUntil
	forgiven := d.own.deaths > 0 && now >= d.toldDead+d.forgiveTime
	if forgiven {
		d.own.deaths = 0
	}
	if over || forgiven {
		d.claimSelf(now, d.own.incarnation+1)
	}
}

// leave says goodbye to all.
func (d *detector) leave(now time.Duration) {
	d.own.status = Left
	d.broadcast(d.self)
	d.shoutAt = now
	d.sendBroadcasts(now)
}

// spread has a claim told with so many packets that everybody hears it: each
// beat reaches some nodes, and those tell it again.
func (d *detector) disseminate(i id) {
	d.version++
	tells := 10 * bits.Len(uint(len(d.ring)+1))
	if i == d.self {
		d.ownTells = tells
	} else {
		d.peers[i].transmits = tells
	}
	for _, other := range d.telling {
		if other == i {
			return
		}
	}
	d.telling = append(d.telling, i)
}

// proclaim has a claim told to everybody at once, too.
func (d *detector) broadcast(i id) {
	d.disseminate(i)
	d.shouting = append(d.shouting, i)
}

// tell adds to claims what the receiver may not know yet: what we think of it
// where that is nothing good, then what is fresh, by turns.
func (d *detector) piggyback(to *peer, claims []claim) []claim {
	switch {
	case to.private:
		claims = append(claims, claim{about: to.id, status: givenUp})
	case to.claim.status > HoldDown:
		claims = append(claims, to.claim)
	}
	n := len(d.telling)
	for range min(n, maxPiggybacked, maxClaims-len(claims)) {
		i := d.telling[0]
		d.telling = d.telling[1:]
		if i == d.self {
			claims = append(claims, d.own)
			if d.ownTells--; d.ownTells > 0 {
				d.telling = append(d.telling, i)
			}
			continue
		}
		p := d.peers[i]
		if p == nil || p.private {
			continue
		}
		claims = append(claims, p.claim)
		if p.transmits--; p.transmits > 0 {
			d.telling = append(d.telling, i)
		}
	}
	return claims
}

// recite returns some of all claims, by turns.
func (d *detector) antiEntropy() []claim {
	var claims []claim
	for n := 0; n < len(d.ring) && len(claims) < maxAntiEntropy; n++ {
		d.recited = (d.recited + 1) % len(d.ring)
		if p := d.ring[d.recited]; p.claim.status != Unknown && !p.private {
			claims = append(claims, p.claim)
		}
	}
	if d.own.incarnation > 0 {
		claims = append(claims, d.own)
	}
	return claims
}

// shout sends what is proclaimed to everybody at once, and what else is fresh as far as there is room.
func (d *detector) sendBroadcasts(now time.Duration) {
	if len(d.shouting) == 0 || now < d.shoutAt {
		return
	}
	d.shoutAt = now + broadcastInterval
	var fresh []claim
	for _, i := range slices.Concat(d.shouting, d.telling) {
		if len(fresh) == maxClaims {
			break
		}
		c := d.own
		if i != d.self {
			p := d.peers[i]
			if p == nil || p.private {
				continue
			}
			c = p.claim
		}
		if !slices.Contains(fresh, c) {
			fresh = append(fresh, c)
		}
	}
	d.shouting = d.shouting[:0]
	for _, p := range d.ring {
		d.seq++
		d.out = append(d.out, outgoing{p, packet{
			from: d.self, to: p.id, boot: d.boot, seq: d.seq, hold: d.hold, watch: p.watcher, heartbeats: d.heartbeats, hearsBadly: d.deaf, claims: fresh,
		}})
	}
}
