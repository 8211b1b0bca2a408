package heartbeat

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// isBlocked is an ok for await: a speaker is alive, and heard by frames alone.
func isBlocked(of *speaker) func(line) bool {
	return func(l line) bool {
		return slices.ContainsFunc(l.View.Members, func(m detect.Member) bool {
			return m.Name == of.name && m.Status == detect.Alive && m.Heard && m.Blocked && m.ByFrames
		})
	}
}

// A firewall drops or refuses all heartbeats to one node from the first day: frames carry them on the same link, and
// show when the node is dead.
func TestBlockedPort(t *testing.T) {
	addresses(t, func(t *testing.T, address string) {
		verdict := "drop"
		if netip.MustParseAddr(fmt.Sprintf(address, 1)).Is6() {
			verdict = "reject"
		}
		s := clusterWith(t, speaker{verdict: verdict}, 3, address)
		for _, o := range s[1:] {
			s[0].await(t, o.name+" is heard by frames", isBlocked(o))
			o.await(t, "it is alive", sees(s[0], detect.Alive))
		}
		pulled := boottime()
		s[0].ns.SetDown("eth0")
		for _, o := range s[1:] {
			l := o.await(t, "it is dead", sees(s[0], detect.Dead))
			t.Logf("%s: dead after %v", verdict, l.At-pulled)
		}
	})
}

// Frames on the link of the addresses wake the thread while they carry its packets, and allocate no more than
// datagrams.
func TestNodePathStepAllocates(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self := nstest.Self(t)
		nstest.Veth(t, self, "e0", self, "e1")
		var threads [2]*beatThread
		for i, name := range []string{"e0", "e1"} {
			// No route leads to the address that each has for the other.
			own := Peer{[]string{"a", "b"}[i], netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)}), true}
			other := Peer{[]string{"b", "a"}[i], netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), true}
			timers := detect.Timers{Interval: time.Microsecond, Multiplier: 1000}
			threads[i] = newTestThread(t, own, []Peer{own, other}, timers)
			link := linkOf(self, name)
			link.Fast, link.NodePath = false, true
			threads[i].enqueue(order{Links: []Link{link}})
			t.Cleanup(func() { threads[i].setLinks(nil, nil) })
		}
		step := func() {
			for _, th := range threads {
				th.step()
				th.watchNodePath()
				th.sockets.wait(0, true, true, true)
			}
		}
		isHeard := func() bool { return threads[0].detector.LastHeard(detect.NodeIDOf("b")) != 0 }
		nstest.Until(t, within, "a session by frames", func() bool { step(); return isHeard() })
		for range 1000 {
			step()
		}
		if n := testing.AllocsPerRun(1000, step); n > 4 {
			t.Errorf("a heartbeat of two nodes allocates %v times, want 4 at most", n)
		}

		threads[0].step()
		threads[0].watchNodePath()
		threads[1].step()
		began := boottime()
		threads[0].sockets.wait(time.Hour, true, true, true)
		if !threads[0].sockets.found[nodePathFile] {
			t.Errorf("no frame woke the thread within %v", boottime()-began)
		}
	})
}
