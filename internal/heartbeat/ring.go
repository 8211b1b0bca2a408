package heartbeat

import (
	"slices"
	"time"
)

// known is a peer as membership has it.
type known struct {
	name   string
	gossip bool
}

// set makes these the peers. What is known of those that stay is kept.
func (d *detector) set(now time.Duration, peers []known) {
	next := make(map[id]*peer, len(peers))
	for _, k := range peers {
		i := idOf(k.name)
		if i == d.self {
			continue
		}
		p := d.peers[i]
		if p == nil {
			p = &peer{id: i, name: k.name, claim: claim{about: i}, gossipSince: now}
		}
		if p.gossip != k.gossip {
			p.gossip, p.gossipSince = k.gossip, now
		}
		next[i] = p
	}
	d.peers = next
	d.watching = slices.DeleteFunc(d.watching, func(p *peer) bool { return next[p.id] != p })
	d.ring = d.ring[:0]
	for _, p := range next {
		d.ring = append(d.ring, p)
	}
	slices.SortFunc(d.ring, func(a, b *peer) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	// Not with the next beat only: who hears us and is not our watcher would not miss us if we ended before it.
	d.choose(now)
}

// after returns the index of the first peer behind i on the ring.
func (d *detector) after(i id) int {
	at, _ := slices.BinarySearchFunc(d.ring, i, func(p *peer, i id) int {
		if p.id <= i {
			return -1
		}
		return 1
	})
	return at
}

// successors calls f with the peers behind i on the ring, nearest first, until it returns false.
func (d *detector) successors(i id, f func(*peer) bool) {
	start := d.after(i)
	for n := range d.ring {
		if p := d.ring[(start+n)%len(d.ring)]; p.id != i && !f(p) {
			return
		}
	}
}

// choose makes the next living nodes on the ring our watchers; of a small
// cluster also those that seem dead, so that they are heard as soon as they are back.
func (d *detector) choose(now time.Duration) {
	left := d.watchers
	chosen := make(map[id]bool, left)
	d.successors(d.self, func(p *peer) bool {
		if len(d.ring) <= d.watchers || d.status(now, p).Living() {
			chosen[p.id] = true
			left--
		}
		return left > 0
	})
	for _, p := range d.ring {
		was := p.watcher
		if p.watcher = chosen[p.id]; was && !p.watcher {
			d.send(p, packet{}) // it need not wait for us any more
		}
	}
}
