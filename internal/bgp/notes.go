package bgp

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
)

// notes hold a sentence for each session that is not up, and what would be lost
// when a peer is recreated. They hold only what GoBGP reports once and cannot be
// read from it later.
type notes struct {
	// wake has one slot: the watch should check the sessions.
	wake chan struct{}

	mu     sync.Mutex
	byPeer map[netip.Addr]note
	past   map[netip.Addr]past
	// withheld are the peers that do not get all of their routes.
	withheld map[netip.Addr]string
}

type note struct {
	text string
	// badAS: the router's AS is not the configured one; asked: we asked for it. The
	// text is empty until the router answers.
	badAS, asked bool
}

// past is the history of a peer from before it was recreated.
type past struct {
	// lost is when the session went down; zero while it is up and before it was first up.
	lost time.Time
	// Messages of the peer's earlier instances.
	updates, sent, received uint64
}

func newNotes() *notes {
	return &notes{wake: make(chan struct{}, 1), byPeer: map[netip.Addr]note{}, past: map[netip.Addr]past{}}
}

// changed wakes the watch.
func (n *notes) changed() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// of returns the note about a peer.
func (n *notes) of(peer netip.Addr) note {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byPeer[peer]
}

// write replaces the sentence about a peer.
func (n *notes) write(peer netip.Addr, text string) { n.put(peer, note{text: text}, false) }

// suggest writes a sentence only if there is none: the first is closest to the cause.
func (n *notes) suggest(peer netip.Addr, text string) { n.put(peer, note{text: text}, true) }

// wrongAS notes a wrong AS, whose number GoBGP does not report, unless that is noted already.
func (n *notes) wrongAS(peer netip.Addr) {
	if !n.of(peer).badAS {
		n.put(peer, note{badAS: true}, false)
	}
}

func (n *notes) put(peer netip.Addr, entry note, weak bool) {
	n.mu.Lock()
	old := n.byPeer[peer]
	if weak && old != (note{}) || old == entry {
		n.mu.Unlock()
		return
	}
	n.byPeer[peer] = entry
	n.mu.Unlock()
	n.changed()
}

// toAsk reports once for each detected wrong AS that we should ask the router for its AS.
func (n *notes) toAsk(peer netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	entry := n.byPeer[peer]
	if !entry.badAS || entry.asked {
		return false
	}
	entry.asked = true
	n.byPeer[peer] = entry
	return true
}

// answer adds the sentence about a wrong AS, if that is still the problem.
func (n *notes) answer(peer netip.Addr, text string) {
	n.mu.Lock()
	entry := n.byPeer[peer]
	if entry.badAS {
		entry.text = text
		n.byPeer[peer] = entry
	}
	n.mu.Unlock()
	n.changed()
}

// up notes that a session is established.
func (n *notes) up(peer netip.Addr) {
	n.mu.Lock()
	delete(n.byPeer, peer)
	before := n.past[peer]
	before.lost = time.Time{}
	n.past[peer] = before
	n.mu.Unlock()
	n.changed()
}

// down notes that a session was lost.
func (n *notes) down(peer netip.Addr) {
	n.mu.Lock()
	before := n.past[peer]
	before.lost = time.Now()
	n.past[peer] = before
	n.mu.Unlock()
	n.changed()
}

// withhold notes which peers do not get all of their routes, and why.
func (n *notes) withhold(why map[netip.Addr]string) {
	n.mu.Lock()
	same := maps.Equal(n.withheld, why)
	n.withheld = why
	n.mu.Unlock()
	if !same {
		n.changed()
	}
}

// withheldFrom returns why a peer does not get all of its routes; "" if it does.
func (n *notes) withheldFrom(peer netip.Addr) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.withheld[peer]
}

// carry keeps the counters of a peer that is about to be recreated.
func (n *notes) carry(peer netip.Addr, m *api.Messages) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.past[peer]
	before.updates += m.Sent.Update
	before.sent += m.Sent.Notification
	before.received += m.Received.Notification
	n.past[peer] = before
}

// before returns the past of a peer.
func (n *notes) before(peer netip.Addr) past {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.past[peer]
}

// clear drops the sentence about a peer.
func (n *notes) clear(peer netip.Addr) {
	n.mu.Lock()
	delete(n.byPeer, peer)
	n.mu.Unlock()
	n.changed()
}

// forget drops everything about a peer.
func (n *notes) forget(peer netip.Addr) {
	n.mu.Lock()
	delete(n.byPeer, peer)
	delete(n.past, peer)
	n.mu.Unlock()
	n.changed()
}
