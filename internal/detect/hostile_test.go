package detect

import (
	"math"
	"testing"
	"time"
)

// forge has a packet of the victim arrive at each other node, as a thief of the key writes it: the others' packets show
// the victim's boot.
func (w *world) forge(victim *node, seq uint64, claims ...NodeClaim) {
	for _, n := range w.nodes {
		if n != victim {
			n.d.Receive(n.clock(), Packet{
				From: victim.id, To: n.id, Boot: victim.d.boot, Seq: seq, Hold: 160 * ms, Watch: true, Claims: claims,
			})
			n.run()
		}
	}
}

// What a thief of the key said must not outlast his departure and the change of the key: here the last possible number
// of a packet.
func TestForgedSequenceHeals(t *testing.T) {
	for _, n := range []int{2, 4, 7} {
		w := settled(t, 1, n)
		victim := w.nodes[0]
		w.forge(victim, math.MaxUint64)
		w.after(300 * ms)
		w.must(t, 2*time.Second, func() bool { return w.heardByAll(victim) }, "heard by all")
		w.stays(t, 10*time.Second, func() bool {
			return w.heardByAll(victim) && w.all(victim, Alive)()
		}, "heard by all, and alive")
	}
}

// heardByAll reports whether all others heard the node within the last heartbeats.
func (w *world) heardByAll(victim *node) bool {
	for _, n := range w.nodes {
		if p := n.d.peers[victim.id]; n != victim && n.clock()-p.lastHeard > 150*ms {
			return false
		}
	}
	return true
}

// The last possible incarnations end with a refutation as any other does, even where no speaker restarts.
func TestForgedIncarnationHeals(t *testing.T) {
	for _, status := range []Status{Dead, Left, SpeakerDown, HoldDown} {
		for _, incarnation := range []uint32{
			math.MaxUint32, math.MaxUint32 - 1, math.MaxInt32, math.MaxInt32 + 1, math.MaxInt32 + 2,
		} {
			w := settled(t, 1, 4)
			victim, forger := w.nodes[0], w.nodes[3]
			w.forge(forger, forger.d.seq+1, NodeClaim{About: victim.id, Status: status, Deaths: 255, Incarnation: incarnation})
			forger.d.seq += 10
			w.after(time.Second)
			w.must(t, 6*time.Minute, w.all(victim, Alive), "alive to all")
			w.stays(t, 5*time.Second, w.all(victim, Alive), "alive to all")
			victim.kill()
			w.must(t, time.Second, w.all(victim, SpeakerDown), "SpeakerDown to all")
			victim.start()
			w.must(t, 10*time.Minute, w.all(victim, Alive), "alive to all after a restart")
		}
	}
}
