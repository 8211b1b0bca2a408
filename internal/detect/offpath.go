package detect

import "time"

const (
	// besideTime is how long it counts that a node was heard on another link.
	besideTime = time.Second
	// besideDelay is added to the age of such news when it is passed on: it gets no fresher.
	besideDelay = 10 * time.Millisecond
)

// isOffPath reports whether a peer is dead here, and alive on another link, to this node or to another one.
func (d *Detector) isOffPath(at time.Duration, p *peerState) bool {
	if p.Status != Dead || d.onLinks(p) == Dead {
		return false
	}
	last := d.heardBeside(p)

	return last != 0 && at-last <= besideTime
}

// heardBeside returns when a peer that fell silent here was last heard on another link, 0 for never. A peer that died
// was heard last on all links at the same time, but for a packet that was lost.
func (d *Detector) heardBeside(p *peerState) time.Duration {
	last := p.besideAt
	silentSince := min(p.lastHeard, p.claimedAt)
	for _, l := range d.links {
		there := l.peers[p.id]
		if there == nil || there.Status > HoldDown {
			continue
		}
		if there.lastHeard-silentSince > d.timers.Interval*3/2 {
			last = max(last, there.lastHeard)
		}
	}

	return last
}

// noteOffPath notes claims that peers are heard on another link, which all nodes pass on.
func (d *Detector) noteOffPath(at time.Duration) {
	d.beside = d.beside[:0]
	for _, p := range d.ring {
		// A verdict of this node alone must not end the doubts of others.
		if p.private || len(d.beside) == maxPiggybacked || !d.isOffPath(at, p) {
			continue
		}
		age := at - d.heardBeside(p) + besideDelay
		claim := NodeClaim{
			About:       p.id,
			Status:      replyHeard,
			Incarnation: uint32(age.Milliseconds()),
		}
		d.beside = append(d.beside, claim)
	}
}

// receiveBeside takes another node's news that a peer was heard on another link.
func (p *peerState) receiveBeside(at time.Duration, c NodeClaim) {
	age := time.Duration(c.Incarnation) * time.Millisecond
	if p.Status == Dead && age <= besideTime {
		p.besideAt = max(p.besideAt, at-age)
	}
}
