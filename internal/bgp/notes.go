package bgp

import (
	"net/netip"
	"sync"
)

// notes hold why each session is not up, in a sentence. GoBGP tells that in
// passing only, so it is written down here; what GoBGP can be asked is not.
type notes struct {
	// wake has one slot: somebody should look at the sessions.
	wake chan struct{}

	mu     sync.Mutex
	byPeer map[netip.Addr]note
}

type note struct {
	text string
	// badAS: the router's AS is not the configured one; asked: it was asked for its AS.
	badAS, asked bool
}

func newNotes() *notes {
	return &notes{wake: make(chan struct{}, 1), byPeer: map[netip.Addr]note{}}
}

// changed wakes the watch.
func (n *notes) changed() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// of returns the sentence about a peer; empty for none.
func (n *notes) of(peer netip.Addr) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byPeer[peer].text
}

// write replaces the sentence about a peer.
func (n *notes) write(peer netip.Addr, text string) { n.put(peer, note{text: text}, false) }

// suggest writes a sentence only where there is none: the first is nearest to the cause.
func (n *notes) suggest(peer netip.Addr, text string) { n.put(peer, note{text: text}, true) }

// wrongAS writes what little GoBGP tells of a wrong AS, unless the AS was asked for already.
func (n *notes) wrongAS(peer netip.Addr) {
	n.mu.Lock()
	known := n.byPeer[peer].badAS
	n.mu.Unlock()
	if !known {
		n.put(peer, note{text: "peer AS is not the configured one", badAS: true}, false)
	}
}

func (n *notes) put(peer netip.Addr, entry note, weak bool) {
	n.mu.Lock()
	old := n.byPeer[peer]
	if weak && old.text != "" || old == entry {
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

// forget drops the sentence about a peer.
func (n *notes) forget(peer netip.Addr) {
	n.mu.Lock()
	delete(n.byPeer, peer)
	n.mu.Unlock()
	n.changed()
}
