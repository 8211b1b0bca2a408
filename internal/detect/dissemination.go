package detect

import (
	"math/bits"
	"slices"
	"time"
)

const (
	// broadcastInterval is the least time between two broadcasts.
	broadcastInterval = 10 * time.Millisecond
	// maxPiggybacked is how many fresh claims a packet carries, and maxAntiEntropy how many old claims a probe does.
	maxPiggybacked = 24
	maxAntiEntropy = 24
)

// heldClaim is a claim that this node makes, and how it spreads.
type heldClaim struct {
	NodeClaim
	// private reports whether the claim is for this node alone, and not sent.
	private bool
	// retransmits is how often the claim is still to be piggybacked.
	retransmits int
}

// peerClaim is the claim of this node about a peer.
type peerClaim struct {
	heldClaim
	claimedAt time.Duration
	// accused reports whether this node asks the wire if its verdict is right: it declared the peer dead, or it
	// watches a peer whose speaker is down.
	accused bool
	// former is the claim before a verdict that may be wrong. backAt is when the peer was heard again after the
	// verdict.
	former NodeClaim
	backAt time.Duration
}

func (p *peerClaim) set(at time.Duration, c NodeClaim, private bool) {
	p.NodeClaim, p.claimedAt = c, at
	p.private, p.backAt = private, 0
}

// dissemination is what this node still has to tell others.
type dissemination struct {
	// fresh are the subjects of claims that other packets carry, in turn.
	fresh []NodeID
	// urgent are the subjects of claims that also go to all nodes at broadcastAt.
	urgent      []NodeID
	broadcastAt time.Duration
	// probed is the index of the last peer that got a probe, and repeated the index of the last peer whose claim was
	// repeated.
	probed, repeated int
}

// handleClaim takes one claim, question or reply out of a packet.
func (d *Detector) handleClaim(at time.Duration, from *peerState, c NodeClaim) {
	if c.About == d.self {
		d.handleOwnClaim(at, from, c)
		return
	}

	about := d.peers[c.About]
	switch {
	case about == nil, c.Status == privateDeath:
	case c.Status == query:
		d.answerQuery(at, from, about)
	case c.isAssertion():
		d.adoptClaim(at, about, c)
	default:
		d.handleReply(at, from, about, c)
	}
}

// adoptClaim adopts another node's claim, unless this node has a later one or hears the subject.
func (d *Detector) adoptClaim(at time.Duration, about *peerState, c NodeClaim) {
	// A private claim yields to what others claim with the same incarnation.
	yields := about.private && c.Incarnation == about.Incarnation && c.Status > HoldDown
	if !c.supersedes(about.NodeClaim) && !yields {
		return
	}
	isHeard := about.lastHeard != 0 && at-about.lastHeard < about.hold*3/4
	if (c.Status == Dead || c.Status == SpeakerDown) && isHeard && at >= d.grace.until {
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
		about.accused, about.lastAlive = true, at // its kernel is alive
		if !about.private {
			about.former = about.NodeClaim
		}
	}
	about.set(at, c, false)
	d.disseminate(about.id)
}

// claimAbout returns the claim about a node that may be sent, or nil where there is none.
func (d *Detector) claimAbout(id NodeID) *heldClaim {
	if id == d.self {
		return &d.own.heldClaim
	}
	p := d.peers[id]
	if p == nil || p.private {
		return nil
	}

	return &p.heldClaim
}

// disseminate has a claim piggybacked on so many packets that every node gets it: each heartbeat reaches some nodes,
// and they pass the claim on.
func (d *Detector) disseminate(id NodeID) {
	d.version++
	d.claimAbout(id).retransmits = 10 * bits.Len(uint(len(d.ring)+1))
	if !slices.Contains(d.dissemination.fresh, id) {
		d.dissemination.fresh = append(d.dissemination.fresh, id)
	}
}

// broadcast also has a claim sent to all nodes at once.
func (d *Detector) broadcast(id NodeID) {
	d.disseminate(id)
	d.dissemination.urgent = append(d.dissemination.urgent, id)
}

// sendBroadcast sends urgent claims to all nodes, and fresh claims as far as there is room.
func (d *Detector) sendBroadcast(at time.Duration) {
	s := &d.dissemination
	if len(s.urgent) == 0 || at < s.broadcastAt {
		return
	}

	s.broadcastAt = at + broadcastInterval
	var claims []NodeClaim
	for _, id := range slices.Concat(s.urgent, s.fresh) {
		if len(claims) == maxClaims {
			break
		}
		held := d.claimAbout(id)
		if held != nil && !slices.Contains(claims, held.NodeClaim) {
			claims = append(claims, held.NodeClaim)
		}
	}
	s.urgent = s.urgent[:0]
	for _, p := range d.ring {
		d.sendExact(p, Packet{Claims: claims})
	}
}

// piggyback appends what the receiver may not know yet: this node's bad opinion about it, if there is one, and then
// fresh claims in turn.
func (d *Detector) piggyback(to *peerState, claims []NodeClaim) []NodeClaim {
	switch {
	case to.private:
		claims = append(claims, NodeClaim{About: to.id, Status: privateDeath})
	case to.Status > HoldDown:
		claims = append(claims, to.NodeClaim)
	}

	s := &d.dissemination
	for range min(len(s.fresh), maxPiggybacked, maxClaims-len(claims)) {
		id := s.fresh[0]
		s.fresh = s.fresh[1:]
		held := d.claimAbout(id)
		if held == nil {
			continue
		}
		claims = append(claims, held.NodeClaim)
		held.retransmits--
		if held.retransmits > 0 {
			s.fresh = append(s.fresh, id)
		}
	}

	return claims
}

// antiEntropy returns some of all claims, in turn.
func (d *Detector) antiEntropy() []NodeClaim {
	s := &d.dissemination
	var claims []NodeClaim
	for n := 0; n < len(d.ring) && len(claims) < maxAntiEntropy; n++ {
		s.repeated = (s.repeated + 1) % len(d.ring)
		p := d.ring[s.repeated]
		if p.Status != Unknown && !p.private {
			claims = append(claims, p.NodeClaim)
		}
	}
	if d.own.Incarnation > 0 {
		claims = append(claims, d.own.NodeClaim)
	}

	return claims
}
