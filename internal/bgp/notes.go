package bgp

import (
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
)

// notes hold why each session is not up, in a sentence, and what would be lost
// with a peer that is made anew. GoBGP tells these in passing only, so they are
// written down here; what GoBGP can be asked is not.
type notes struct {
	// wake has one slot: somebody should look at the sessions.
	wake chan struct{}

	mu     sync.Mutex
	byPeer map[netip.Addr]note
	past   map[netip.Addr]past
}

type note struct {
	text string
	// badAS: the router's AS is not the configured one; asked: it was asked for its
	// AS. The text is empty until it answered.
	badAS, asked bool
}

// past is what was before a peer was made anew.
type past struct {
	// lost is when the session went down; zero while it is up and before it first was.
	lost time.Time
	// Messages of the peer's earlier lives.
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

// of returns what is noted of a peer.
func (n *notes) of(peer netip.Addr) note {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byPeer[peer]
}

// write replaces the sentence about a peer.
func (n *notes) write(peer netip.Addr, text string) { n.put(peer, note{text: text}, false) }

// suggest writes a sentence only where there is none: the first is nearest to the cause.
func (n *notes) suggest(peer netip.Addr, text string) { n.put(peer, note{text: text}, true) }

// wrongAS notes a wrong AS, of which GoBGP does not tell what it is, unless that was noted before.
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

// toAsk reports, once for each time a wrong AS was met, that its AS should be asked for.
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

// answer says more of a wrong AS, if that is still the trouble.
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

// carry keeps the counters of a peer that is about to be made anew.
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

// forget drops all about a peer.
func (n *notes) forget(peer netip.Addr) {
	n.mu.Lock()
	delete(n.byPeer, peer)
	delete(n.past, peer)
	n.mu.Unlock()
	n.changed()
}
