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

// nodePathEnds are two threads that the test drives. No route leads to the address that each has for the other, and
// their addresses are on one link.
func nodePathEnds(t *testing.T, timers detect.Timers) (threads [2]*beatThread) {
	t.Helper()
	self := nstest.Self(t)
	nstest.Veth(t, self, "e0", self, "e1")
	for i, name := range []string{"e0", "e1"} {
		own := Peer{[]string{"a", "b"}[i], netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)}), true}
		other := Peer{[]string{"b", "a"}[i], netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), true}
		threads[i] = newTestThread(t, own, []Peer{own, other}, timers)
		link := linkOf(self, name)
		link.Fast, link.NodePath = false, true
		threads[i].enqueue(order{Links: []Link{link}})
		t.Cleanup(func() { threads[i].setLinks(nil, nil) })
	}
	return threads
}

// meetByFrames drives two threads until the first has a session with the second.
func meetByFrames(t *testing.T, threads [2]*beatThread) {
	t.Helper()
	nstest.Until(t, within, "a session by frames", func() bool {
		for _, th := range threads {
			th.step()
			th.wait(0, true)
		}
		return threads[0].detector.LastHeard(detect.NodeIDOf("b")) != 0
	})
}

// Frames on the link of the addresses wake the thread while they carry its packets, and allocate no more than
// datagrams.
func TestNodePathStepAllocates(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		threads := nodePathEnds(t, detect.Timers{Interval: time.Microsecond, Multiplier: 1000})
		meetByFrames(t, threads)
		step := func() {
			for _, th := range threads {
				th.step()
				th.wait(0, true)
			}
		}
		for range 1000 {
			step()
		}
		if n := testing.AllocsPerRun(1000, step); n > 4 {
			t.Errorf("a heartbeat of two nodes allocates %v times, want 4 at most", n)
		}

		threads[0].step()
		threads[1].step()
		began := boottime()
		threads[0].wait(time.Hour, true)
		if !threads[0].sockets.found[nodePathFile] {
			t.Errorf("no frame woke the thread within %v", boottime()-began)
		}
	})
}

// While the speaker hangs, and between goodbyes, the thread reads nothing: no frame that waits ends its sleeps.
//
// Trap: the thread never sleeps, at a priority above all ordinary ones.
func TestFrameDoesNotWakeThreadThatReadsNone(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const interval = 100 * ms
		threads := nodePathEnds(t, detect.Timers{Interval: interval, Multiplier: 3})
		meetByFrames(t, threads)
		a, b := threads[0], threads[1]
		before := b.detector.LastBeat()
		nstest.Until(t, within, "a heartbeat", func() bool { b.step(); return b.detector.LastBeat() > before })
		if !a.shared.isSpeakerHanging() || !a.detector.UsesFrames() {
			t.Fatal("the speaker runs, or frames are not in use")
		}
		a.orders <- order{Leave: true} // wakes nothing, as enqueue would
		began := boottime()
		a.run()
		if took, want := boottime()-began, interval+goodbyes*goodbyeInterval; took < want {
			t.Errorf("the thread slept for %v, want %v", took, want)
		}
	})
}

// A hello shows that an interface was there once, and any machine can send it again. Only frames with packets protect
// an interface.
//
// Trap: a hello of a node's other interface, sent each second, has the frames of the node refused.
func TestReplayedHelloOnNodePath(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		threads := nodePathEnds(t, detect.Timers{})
		meetByFrames(t, threads)
		a, b, id := threads[0], threads[1], detect.NodeIDOf("b")
		l := a.nodePath
		heard, end, other := a.detector.LastHeard(id), l.ends[id].linkEnd, linkEnd{macAddress{2, 9}, 9}
		replay := func(at time.Duration, from linkEnd) {
			hello := b.detector.Hello()
			a.receiveFrame(at, l, sealFrame(b.frameSeals[0], nil, from, everyEnd, &hello))
		}
		replay(heard+replaceTime-ms, end)
		replay(heard+replaceTime-ms, other)
		if l.ends[id].linkEnd != end {
			t.Error("a hello replaces an interface whose frames come")
		}
		for after := replaceTime; after <= 2*replaceTime; after += time.Second {
			replay(heard+after, other)
		}
		if l.ends[id].linkEnd != other {
			t.Error("hellos protect an interface whose frames do not come")
		}

		ping := detect.Packet{From: id, To: detect.NodeIDOf("a"), Boot: 1, Seq: 1, Hold: time.Second}
		a.receiveFrame(heard+2*replaceTime+ms, l, sealFrame(b.frameSeals[0], nil, end, l.own(), &ping))
		if l.ends[id].linkEnd != end {
			t.Error("hellos of another interface have a node's frames refused")
		}
	})
}

// Where datagrams arrive one way, the peer's frames are copies of them, and protect its interface all the same.
func TestCopiesProtectFarEnd(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		threads := nodePathEnds(t, detect.Timers{})
		meetByFrames(t, threads)
		a, b, id := threads[0], threads[1], detect.NodeIDOf("b")
		l := a.nodePath
		end, other := l.ends[id].linkEnd, linkEnd{macAddress{2, 9}, 9}
		beat := b.detector.LastBeat()
		nstest.Until(t, within, "a heartbeat", func() bool { b.step(); return b.detector.LastBeat() > beat })
		at := boottime() + 2*replaceTime
		p := detect.Packet{
			From: id,
			To:   detect.NodeIDOf("a"),
			Boot: b.detector.Hello().Boot,
			Seq:  1 << 40,
			Hold: time.Second,
		}
		a.detector.Receive(at-ms, p) // the datagram
		if a.detector.LastHeard(id) != at-ms {
			t.Fatal("the datagram is not accepted")
		}
		a.receiveFrame(at, l, sealFrame(b.frameSeals[0], nil, end, l.own(), &p))
		hello := b.detector.Hello()
		a.receiveFrame(at+ms, l, sealFrame(b.frameSeals[0], nil, other, everyEnd, &hello))
		if l.ends[id].linkEnd != end {
			t.Error("a hello replaces an interface whose frames come")
		}
	})
}
