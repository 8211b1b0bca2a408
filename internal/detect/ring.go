package detect

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Peer is another node, as membership knows it.
type Peer struct {
	Name string
	// Gossip takes it for alive.
	Gossip bool
}

// SetPeers makes these the peers. What is known of those that stay is kept.
func (d *Detector) SetPeers(at time.Duration, peers []Peer) {
	next := make(map[NodeID]*peerState, len(peers))
	for _, known := range peers {
		i := NodeIDOf(known.Name)
		if i == d.self {
			continue
		}
		p := d.peers[i]
		if p == nil {
			p = &peerState{
				id:          i,
				name:        known.Name,
				standing:    standing{statement: statement{NodeClaim: NodeClaim{About: i}}},
				gossipSince: at,
			}
		}
		if p.gossip != known.Gossip {
			p.gossip, p.gossipSince = known.Gossip, at
		}
		next[i] = p
	}
	d.peers = next
	d.watching = slices.DeleteFunc(d.watching, func(p *peerState) bool { return next[p.id] != p })
	d.ring = slices.SortedFunc(maps.Values(next), func(a, b *peerState) int { return cmp.Compare(a.id, b.id) })
	// Now, and not with the next heartbeat: a node that hears this one and is not its watcher would not miss it if it
	// ended before.
	d.choose(at)
}

// successors calls f with the peers behind i on the ring, nearest first, until it returns false.
func (d *Detector) successors(i NodeID, f func(*peerState) bool) {
	start, found := slices.BinarySearchFunc(d.ring, i, func(p *peerState, i NodeID) int { return cmp.Compare(p.id, i) })
	if found {
		start++
	}
	for n := range d.ring {
		if p := d.ring[(start+n)%len(d.ring)]; p.id != i && !f(p) {
			return
		}
	}
}

// choose makes the next living nodes on the ring this node's watchers. In a small cluster those that seem dead are
// watchers too, so that they are heard as soon as they are back.
func (d *Detector) choose(at time.Duration) {
	left := Watchers
	chosen := make(map[NodeID]bool, left)
	d.successors(d.self, func(p *peerState) bool {
		if len(d.ring) <= Watchers || d.status(at, p).Living() {
			chosen[p.id] = true
			left--
		}
		return left > 0
	})
	for _, p := range d.ring {
		watched := p.watcher
		if p.watcher = chosen[p.id]; watched && !p.watcher {
			d.send(p, Packet{}) // it need not wait for this node any more
		}
	}
}
