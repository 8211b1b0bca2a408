package detect

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Peer is another node, as the membership lists it.
type Peer struct {
	Name string
	// Gossip reports whether gossip considers it alive.
	Gossip bool
}

// peerState is the state of one other node.
type peerState struct {
	id   NodeID
	name string
	// gossip reports whether gossip considers the peer alive, since gossipSince.
	gossip      bool
	gossipSince time.Duration
	session     peerSession

	// lastHeard is when this node last received a packet of the peer, 0 for never.
	lastHeard time.Duration
	// lastAlive is the time of its last sign of life: to this node, to another node, on the wire, or, while its
	// speaker is down, a refusal by its kernel.
	lastAlive time.Duration
	// watched reports whether the peer sends heartbeats to this node, and listed whether it is in Detector.watching.
	watched, listed bool
	// isWatcher reports whether this node sends heartbeats to the peer.
	isWatcher bool
	// followsLinks reports whether this Detector follows the verdict of the other links.
	followsLinks bool

	allowance
	carriers
	suspicion *peerSuspicion
	reception reception
	wire      wireEvidence
	peerClaim
	complaints

	// refusedAt is when the peer's kernel last refused a packet. rejectedAt is when a firewall last did in its name.
	// pingedAt is when it last got a packet to refuse while its speaker was down.
	refusedAt, rejectedAt, pingedAt time.Duration
}

// peerSession is the session with the run of a peer that answered this node's challenge.
type peerSession struct {
	// boot identifies the run, and seq its last packet.
	boot, seq uint64
	challenge uint64
	// challengedAt and answeredAt are when the peer was last challenged, and answered, before it had a session.
	challengedAt, answeredAt time.Duration
}

// allowance is how long a peer may be silent.
type allowance struct {
	// hold is what the peer asked for.
	hold time.Duration
	// slack is added to it until slackUntil, after hold was too short.
	slack, slackUntil time.Duration
}

// complaints are what a peer last reported about its own reception.
type complaints struct {
	// hearsBadly reports whether the peer hears no node well.
	hearsBadly bool
	// complainedAt is when it reported that it hears this node badly, and lostAt that it hears next to nothing.
	complainedAt, lostAt time.Duration
	// gaveUpAt is when it reported that it alone considers this node dead.
	gaveUpAt time.Duration
	// askedAt is when it last asked for a packet at once, and askingSince when it began to do so again and again.
	askedAt, askingSince time.Duration
}

// SetPeers sets the nodes that exist; this node may be among them. The state of nodes that stay is kept.
func (d *Detector) SetPeers(at time.Duration, peers []Peer) {
	next := make(map[NodeID]*peerState, len(peers))
	for _, listed := range peers {
		id := NodeIDOf(listed.Name)
		if id == d.self {
			continue
		}

		p := d.peers[id]
		if p == nil {
			p = &peerState{id: id, name: listed.Name, gossipSince: at}
			p.About, p.datagramAt = id, at
		}
		if p.gossip != listed.Gossip {
			p.gossip, p.gossipSince = listed.Gossip, at
		}
		next[id] = p
	}

	d.peers = next
	d.version++
	d.watching = slices.DeleteFunc(d.watching, func(p *peerState) bool { return next[p.id] != p })
	d.ring = slices.SortedFunc(maps.Values(next), func(a, b *peerState) int { return cmp.Compare(a.id, b.id) })

	// Not only with the next heartbeat: a node that hears this one and is not its watcher would not miss it if it
	// ended before.
	d.chooseWatchers(at)
}

// chooseWatchers makes the next living nodes on the ring this node's watchers. In a small cluster dead nodes are
// watchers too, so that this node is heard as soon as they are back.
func (d *Detector) chooseWatchers(at time.Duration) {
	left := maxWatchers
	chosen := make(map[NodeID]bool, left)
	d.successors(d.self, func(p *peerState) bool {
		if len(d.ring) <= maxWatchers || d.canWatch(at, p) {
			chosen[p.id] = true
			left--
		}
		return left > 0
	})

	for _, p := range d.ring {
		before := p.isWatcher
		p.isWatcher = chosen[p.id]
		if before && !p.isWatcher {
			d.send(p, Packet{}) // releases it from waiting for this node
		}
	}
}

// newPeerTime is how long a peer that was never heard may be a watcher.
const newPeerTime = 10 * time.Second

// canWatch reports whether a peer seems to run, and is heard here: an old hello may be sent again on a link where its
// sender is not.
func (d *Detector) canWatch(at time.Duration, p *peerState) bool {
	isNew := at-p.datagramAt < newPeerTime

	return d.status(at, p).Living() && (p.lastHeard != 0 || isNew)
}

// successors calls f with the peers behind a node on the ring, nearest first, until f returns false.
func (d *Detector) successors(id NodeID, f func(*peerState) bool) {
	start, found := slices.BinarySearchFunc(d.ring, id, func(p *peerState, id NodeID) int {
		return cmp.Compare(p.id, id)
	})
	if found {
		start++
	}
	for n := range d.ring {
		p := d.ring[(start+n)%len(d.ring)]
		if p.id != id && !f(p) {
			return
		}
	}
}
