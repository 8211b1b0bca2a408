package detect

import (
	"slices"
	"time"
)

// LinkState is what a node finds out about its own end of a link.
type LinkState uint8

const (
	// LinkUnknown means that nothing shows whether it works: no other node sends heartbeats to this one there, all may
	// have died, or this node did not run a moment ago.
	LinkUnknown LinkState = iota
	// LinkWorks means that this node hears another one well there, and is heard by it.
	LinkWorks
	// LinkFails means that this node hears no other one well there, and one of them still on another path; or that
	// others report that they lost it.
	LinkFails
)

// LinkPeer is another node on a link.
type LinkPeer struct {
	Name string
	// MAC is the node's Ethernet address there.
	MAC    [6]byte
	Status Status
}

// LinkView is what is known of a link beside the network between the nodes' addresses. A Detector of its own judges
// each of them.
type LinkView struct {
	// Link is the name of this node's link.
	Link  string
	State LinkState
	// Peers are the nodes whose frames came there.
	Peers []LinkPeer
}

// Equal reports whether two LinkViews are the same.
func (v LinkView) Equal(o LinkView) bool {
	return v.Link == o.Link && v.State == o.State && slices.Equal(v.Peers, o.Peers)
}

// LinkState returns what this node finds out about its own end of the link, beside what the Detector of another path
// hears. A peer that does not get this node's packets does not count as heard: a port may fail one way.
func (d *Detector) LinkState(at time.Duration, path *Detector) LinkState {
	switch {
	case at < d.grace.until:
		return LinkUnknown
	case d.hasComplaints(at, lostAt), d.staysGivenUp(at):
		return LinkFails
	}

	isWell := func(p *peerState) bool {
		isHeard := p.watched && p.reception.share >= goodReception && at-p.lastHeard <= p.hold
		return isHeard && !p.asksAgain(at)
	}
	if slices.ContainsFunc(d.watching, isWell) {
		return LinkWorks
	}

	// A peer that died was heard last on both paths at the same time, but for a few packets that were lost.
	isHeardBeside := func(p *peerState) bool {
		return p.watched && path.LastHeard(p.id)-p.lastHeard > p.hold*3/4
	}
	if slices.ContainsFunc(d.watching, isHeardBeside) {
		return LinkFails
	}

	return LinkUnknown
}

const (
	// askingTime is how long a peer must ask again and again for a packet, which it would have got.
	askingTime = 100 * time.Millisecond
	// refutedTime is how long others may go on to claim that this node is dead after it refuted that.
	refutedTime = 200 * time.Millisecond
	// unexpectedTime is how long no packets come from a peer that sends hellos until none are expected.
	unexpectedTime = time.Minute
)

// staysGivenUp reports whether others do not hear that this node is alive. At its return it refutes that in a moment.
func (d *Detector) staysGivenUp(at time.Duration) bool {
	return d.isGivenUp(at) && d.own.claimedDeadAt-d.own.claimedDeadSince >= refutedTime
}

// noteAsked notes that the peer asked for a packet at once.
func (c *complaints) noteAsked(at time.Duration) {
	if at-c.askedAt > 2*slowQueryInterval {
		c.askingSince = at
	}
	c.askedAt = at
}

// asksAgain reports whether the peer does not get the packets that it asks for.
func (c *complaints) asksAgain(at time.Duration) bool {
	return c.askedAt != 0 && at-c.askedAt <= 2*slowQueryInterval && c.askedAt-c.askingSince >= askingTime
}

// SetLinks sets the Detectors of the other links. What they show counts for this one too where it cannot judge
// itself: a node that it never heard, and all while no node hears another one here.
func (d *Detector) SetLinks(links []*Detector) { d.links = links }

// onLinks returns what the other links show about a peer: it is alive if it is alive on any of them, and dead only if
// it is dead on every one on which it was heard. It returns Unknown if it never was. The usual peer lives on the first
// link: a thousand of them on many links cost little.
func (d *Detector) onLinks(p *peerState) (folded Status) {
	for _, l := range d.links {
		there := l.peers[p.id]
		if there == nil || there.lastHeard == 0 {
			continue
		}

		status := max(there.Status, Alive)
		if folded == Unknown || status < folded {
			folded = status
		}
		if folded.Living() {
			break
		}
	}

	return folded
}

// followLinks takes deaths on all links over, and withdraws a death when its node is heard there again. A link that
// forgot the node shows nothing.
func (d *Detector) followLinks(at time.Duration) {
	pathFails := at >= d.grace.until && d.pathFails(at)
	for _, p := range d.ring {
		switch {
		case pathFails && d.onLinks(p) == Dead && d.status(at, p).Living():
			d.declare(at, p, Dead, true)
			p.followsLinks = true
		case p.followsLinks && (d.onLinks(p).Living() || !p.private):
			p.followsLinks = false
			if p.private {
				d.withdrawPrivateVerdict(at, p)
			}
		}
	}
}

// LastHeard returns when a packet of a peer last came, 0 for never.
func (d *Detector) LastHeard(id NodeID) time.Duration {
	p := d.peers[id]
	if p == nil {
		return 0
	}

	return p.lastHeard
}

// StatusOf returns the status of a peer, Unknown for other nodes.
func (d *Detector) StatusOf(at time.Duration, id NodeID) Status {
	p := d.peers[id]
	if p == nil {
		return Unknown
	}

	return d.status(at, p)
}

// Hello returns a packet to no node. It shows only that this node is there, and no Detector takes it.
func (d *Detector) Hello() Packet { return Packet{From: d.self, Boot: d.boot, Hold: d.hold} }

// ReceiveHello takes what the Hello of a peer shows. If its packets do not come, and did not for long, they go to
// another interface of this node on the same link: they are not expected here.
func (d *Detector) ReceiveHello(at time.Duration, from NodeID) {
	p := d.peers[from]
	if p == nil || !p.watched || at-p.lastHeard <= unexpectedTime {
		return
	}

	p.watched, p.suspicion = false, nil
	d.version++
}

// LastBeat returns the time for which the last heartbeats were planned. A Detector that is made with it sends its own
// in step with this one.
func (d *Detector) LastBeat() time.Duration { return d.lastTick }
