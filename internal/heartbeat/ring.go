package heartbeat

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// set makes these the peers. What is known of those that stay is kept.
func (d *detector) set(now time.Duration, peers []Peer) {
	next := make(map[id]*peer, len(peers))
	for _, known := range peers {
		i := idOf(known.Name)
		if i == d.self {
			continue
		}
		p := d.peers[i]
		if p == nil {
			p = &peer{
				id:          i,
				name:        known.Name,
				standing:    standing{statement: statement{claim: claim{about: i}}},
				gossipSince: now,
			}
		}
		if p.gossip != known.Gossip {
			p.gossip, p.gossipSince = known.Gossip, now
		}
		next[i] = p
	}
	d.peers = next
	d.watching = slices.DeleteFunc(d.watching, func(p *peer) bool { return next[p.id] != p })
	d.ring = slices.SortedFunc(maps.Values(next), func(a, b *peer) int { return cmp.Compare(a.id, b.id) })
	// Now, and not with the next heartbeat: a node that hears this one and is not its watcher would not miss it if it
	// ended before.
	d.choose(now)
}

// successors calls f with the peers behind i on the ring, nearest first, until it returns false.
func (d *detector) successors(i id, f func(*peer) bool) {
	start, found := slices.BinarySearchFunc(d.ring, i, func(p *peer, i id) int { return cmp.Compare(p.id, i) })
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
func (d *detector) choose(now time.Duration) {
	left := Watchers
	chosen := make(map[id]bool, left)
	d.successors(d.self, func(p *peer) bool {
		if len(d.ring) <= Watchers || d.status(now, p).Living() {
			chosen[p.id] = true
			left--
		}
		return left > 0
	})
	for _, p := range d.ring {
		was := p.watcher
		if p.watcher = chosen[p.id]; was && !p.watcher {
			d.send(p, packet{}) // it need not wait for this node any more
		}
	}
}
