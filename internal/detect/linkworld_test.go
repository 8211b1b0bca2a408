package detect

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// linkEnd is a node's end of the clients' network: a Detector that judges it by frames, and what the node publishes.
type linkEnd struct {
	d *Detector
	// waiting are the frames that came since the thread last ran, which they do not wake.
	waiting []arrival
	// isSilent reports whether the node leaves the link to others, as package liveness decides. heardSince is when it
	// began to hear others again.
	isSilent   bool
	heardSince time.Duration
	// missesSince is when questions on the link began to stay without answers.
	missesSince time.Duration
	// published is isSilent as the other nodes know it.
	published bool
}

// gossipTime is how long gossip takes to publish what a node says of its links.
const gossipTime = 300 * ms

func (w *world) hasFrames() bool { return w.clients != nil && w.clients.frames }

// bootLink starts the Detector of the clients' network.
func (n *node) bootLink() {
	n.end = nil
	if !n.world.hasFrames() || !n.world.clients.has(n) {
		return
	}
	n.end = &linkEnd{d: New(Config{
		Timers: n.world.timers, NodeName: n.name, Realtime: true, Epoch: 1,
		Random: func() uint64 { return n.world.random.Uint64() | 1 },
	}, n.d.LastBeat())}
	n.setLinkPeers()
	n.d.SetLinks([]*Detector{n.end.d})
}

// setLinkPeers sets the nodes on the clients' network, as their hellos do.
func (n *node) setLinkPeers() {
	if n.end == nil {
		return
	}
	var peers []Peer
	for _, o := range n.world.nodes {
		if n.world.clients.has(o) {
			peers = append(peers, Peer{Name: o.name, Gossip: true})
		}
	}
	n.end.d.SetPeers(n.clock(), peers)
}

// due is when the thread of the node has something to do: see package heartbeat.
func (n *node) due() time.Duration {
	due := n.d.Due()
	if n.end != nil && n.end.d.HasSuspect() {
		due = min(due, n.end.d.Due())
	}
	return due
}

// runLink is what the thread does for the clients' network when it wakes.
func (n *node) runLink() {
	if n.end == nil {
		return
	}
	w, end := n.world, n.end
	for _, a := range end.waiting {
		end.d.Receive(a.at+n.skew, a.Packet)
	}
	end.waiting = nil
	end.d.Tick(n.clock())
	end.d.TakeQuestions() // which the wire answers for the network of the heartbeats alone
	for _, p := range end.d.TakePackets() {
		w.carryFrame(n, p)
	}
	n.judgeLink()
}

// carryFrame carries a frame on the clients' network.
func (w *world) carryFrame(from *node, p Packet) {
	to := w.byID[p.To]
	if !to.up || to.killed || to.end == nil || !w.clients.passes(from, to) {
		return
	}
	arrives := w.clock + 50*time.Microsecond + time.Duration(w.random.Int64N(int64(w.late)))
	w.at(arrives, func() {
		if to.end != nil {
			to.end.waiting = append(to.end.waiting, arrival{Packet: p, at: w.clock})
		}
	})
}

// judgeLink decides whether the node leaves its link to others, as package liveness does: soon when frames show that it
// fails, and no machine answers either. It takes the link back when it has heard others for ten seconds.
func (n *node) judgeLink() {
	w, end := n.world, n.end
	at := w.clock
	switch n.end.d.LinkState(n.clock(), n.d) {
	case LinkFails:
		n.askOnLink(200 * ms)
	case LinkUnknown:
		n.askOnLink(800 * ms)
	case LinkWorks:
		end.missesSince = 0
		if end.heardSince == 0 {
			end.heardSince = at
		}
		if at-end.heardSince >= holdDownTime {
			end.isSilent = false
		}
	}
	if end.isSilent != end.published && w.isHeardByAny(n) {
		silent := end.isSilent
		end.published = silent
		w.at(at+gossipTime, func() { w.silent[n] = silent })
	}
}

// askOnLink asks machines as long as frames do not come: rounds without an answer for a while are a loss, unless only
// nodes that are dead, or leave the link to others themselves, were asked.
func (n *node) askOnLink(patience time.Duration) {
	w, end := n.world, n.end
	switch {
	case w.answersARPTo(n), n.livingBeside() <= 1 && !w.clients.hasForeign:
		end.missesSince = 0
	case end.missesSince == 0:
		end.missesSince = w.clock
	case w.clock-end.missesSince > patience:
		end.lose()
	}
}

// livingBeside returns how many other nodes on the clients' network are alive and do not leave it to others.
func (n *node) livingBeside() (count int) {
	for _, o := range n.world.nodes {
		if o != n && o.end != nil && n.d.peers[o.id] != nil && n.sees(o).Living() && !n.world.silent[o] {
			count++
		}
	}
	return count
}

func (e *linkEnd) lose() { e.isSilent, e.heardSince = true, 0 }

// answersARPTo reports whether any machine on the clients' network answers a node well enough.
func (w *world) answersARPTo(n *node) bool {
	others := slices.DeleteFunc(slices.Clone(w.nodes), func(o *node) bool { return o == n || !o.up || o.end == nil })
	if w.clients.hasForeign {
		others = append(others, outside)
	}
	return slices.ContainsFunc(others, func(o *node) bool {
		answers := 0
		for range 3 {
			if w.clients.passes(n, o) && w.clients.passes(o, n) {
				answers++
			}
		}
		return answers >= 2
	})
}

// isHeardByAny reports whether gossip gets from a node to any other, on the network of the heartbeats.
func (w *world) isHeardByAny(n *node) bool {
	return slices.ContainsFunc(w.nodes, func(o *node) bool { return o != n && o.up && w.passes(n, o) })
}

// newTwoNetworks is newDual with heartbeats on the clients' network too, to which all nodes or the first few have a
// link.
func newTwoNetworks(n, onClients int, gateway, clientsGateway bool) *announcers {
	return newAnnouncersWith(1, n, 1, func(w *world) {
		w.maxHoldDown = holdDownTime
		w.noGateway = !gateway
		w.clients = &network{hasForeign: clientsGateway, frames: true}
		w.firstOnClients = onClients
	})
}

// twoNetworks calls f for all numbers of nodes, with and without gateways.
func twoNetworks(t *testing.T, numbers []int, f func(t *testing.T, a *announcers)) {
	t.Helper()
	for _, n := range numbers {
		for _, gateway := range []bool{true, false} {
			for _, clientsGateway := range []bool{true, false} {
				name := fmt.Sprintf("%d nodes, gateway %t, clients' gateway %t", n, gateway, clientsGateway)
				t.Run(name, func(t *testing.T) { f(t, newTwoNetworks(n, n, gateway, clientsGateway)) })
			}
		}
	}
}

// links returns the links of all nodes. Those to the clients' network carry the addresses.
func (w *world) links() map[string][]lb.Link {
	out := map[string][]lb.Link{}
	for _, n := range w.nodes {
		out[n.name] = []lb.Link{{Name: "private", Default: true, Prefixes: []netip.Prefix{privateSubnet}}}
		if w.clients.has(n) {
			clients := lb.Link{Name: "clients", Default: true, Silent: w.silent[n], Prefixes: []netip.Prefix{clientsSubnet}}
			out[n.name] = append(out[n.name], clients)
		}
	}
	return out
}

var (
	privateSubnet = netip.MustParsePrefix("10.0.0.0/8")
	clientsSubnet = netip.MustParsePrefix("198.18.0.0/16")
)
