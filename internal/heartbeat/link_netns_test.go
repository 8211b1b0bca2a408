package heartbeat

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// onLink is an ok for await: what a speaker knows of the second link.
func onLink(state detect.LinkState, peers int, status detect.Status) func(line) bool {
	return func(l line) bool {
		if len(l.View.Links) != 1 || l.View.Links[0].State != state {
			return false
		}
		count := 0
		for _, p := range l.View.Links[0].Peers {
			if p.Status == status {
				count++
			}
		}
		return count == peers
	}
}

// twoLinks starts speakers that hear each other on both links. The second one has no addresses.
func twoLinks(t *testing.T, n int, multipliers ...int) []*speaker {
	t.Helper()
	s := clusterWith(t, speaker{links: 1}, n, "192.0.2.%d", multipliers...)
	ready(t, s)
	for _, o := range s {
		o.await(t, "it hears all on the second link", onLink(detect.LinkWorks, n-1, detect.Alive))
	}
	return s
}

// twoEnds are two threads that the test drives, at the ends of a link of their namespace.
func twoEnds(t *testing.T, timers detect.Timers) (threads [2]*beatThread) {
	t.Helper()
	self := nstest.Self(t)
	nstest.Veth(t, self, "e0", self, "e1")
	var peers []Peer
	for i, name := range []string{"a", "b"} {
		peers = append(peers, Peer{name, netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)}), true})
	}
	for i, name := range []string{"e0", "e1"} {
		threads[i] = newTestThread(t, peers[i], peers, timers)
		threads[i].enqueue(order{Links: []Link{linkOf(self, name)}})
		t.Cleanup(func() { threads[i].setLinks(nil, nil) })
	}
	return threads
}

func linkOf(n *nstest.NS, name string) Link {
	return Link{Name: name, Index: n.Link(name).Attrs().Index, MAC: macAddress(n.MAC(name)), Fast: true}
}

// Heartbeats on links allocate no more than those to addresses.
func TestLinkStepAllocates(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		threads := twoEnds(t, detect.Timers{Interval: time.Microsecond, Multiplier: 1000})
		step := func() {
			for _, th := range threads {
				th.step()
				th.wait(0, true)
			}
		}
		nstest.Until(t, within, "both hear each other", func() bool {
			step()
			return len(threads[0].linkViews) == 1 && threads[0].linkViews[0].State == detect.LinkWorks
		})
		for range 1000 {
			step()
		}
		if n := testing.AllocsPerRun(1000, step); n > 4 {
			t.Errorf("a heartbeat of two nodes allocates %v times, want 4 at most", n)
		}
	})
}

// meet drives two threads until the first has a session with the second on their link.
func meet(t *testing.T, threads [2]*beatThread) {
	t.Helper()
	nstest.Until(t, within, "a session", func() bool {
		for _, th := range threads {
			th.step()
		}
		return threads[0].links[0].detector.LastHeard(detect.NodeIDOf("b")) != 0
	})
}

// A node is known by the interface that is heard. Another one in its name, as of an old hello that is sent again,
// counts only when that falls silent.
func TestFarEnd(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		threads := twoEnds(t, detect.Timers{})
		meet(t, threads)
		a, l, id := threads[0], threads[0].links[0], detect.NodeIDOf("b")
		heard, end, other := l.detector.LastHeard(id), l.ends[id].linkEnd, linkEnd{macAddress{2, 9}, 9}
		if a.isFarEnd(heard+replaceTime-ms, l, id, other) || l.ends[id].linkEnd != end {
			t.Error("another interface counts while the first is heard")
		}
		if !a.isFarEnd(heard+replaceTime, l, id, end) || !a.isFarEnd(heard+replaceTime, l, id, other) {
			t.Error("an interface does not count that is known, or that replaces a silent one")
		}
		if l.ends[id].linkEnd != other {
			t.Errorf("the node is known by %v, want %v", l.ends[id], other)
		}
	})
}

// A hello gets to the Detector: after a long silence its node is not expected on the link any more.
func TestHelloIsReceived(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		threads := twoEnds(t, detect.Timers{})
		meet(t, threads)
		l, b := threads[0].links[0], threads[1].links[0]
		hello := b.detector.Hello()
		frame := sealFrame(threads[1].frameSeals[0], nil, b.own(), everyEnd, &hello)
		before := l.detector.Version()
		threads[0].receiveFrame(boottime(), l, frame)
		if l.detector.Version() != before {
			t.Error("the node is not expected any more, though its packets came a moment ago")
		}
		threads[0].receiveFrame(boottime()+2*time.Minute, l, frame)
		if l.detector.Version() == before {
			t.Error("the node is expected, though only hellos come")
		}
	})
}

// A node that is gone from a link for long, or from the cluster, is not expected there any more.
func TestAbsentFromLink(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		threads := twoEnds(t, detect.Timers{})
		meet(t, threads)
		a, l := threads[0], threads[0].links[0]
		isKnown := func() bool { return len(l.ends)+len(l.detector.View(boottime()).Members) == 1+2 }
		if a.setLinkPeers(boottime()+absentTime-time.Second, l); !isKnown() {
			t.Error("it is gone too early")
		}
		a.carryOut(order{Peers: []Peer{{"a", netip.MustParseAddr("127.0.0.1"), true}}})
		if isKnown() {
			t.Error("the node is gone, and expected on the link")
		}

		a.carryOut(order{Peers: []Peer{{"b", netip.MustParseAddr("127.0.0.2"), true}}})
		meet(t, threads)
		l.view.State = detect.LinkUnknown
		if a.setLinkPeers(boottime()+absentTime+time.Second, l); !isKnown() {
			t.Error("it is not expected any more, though the link may be dead")
		}
		l.view.State = detect.LinkWorks
		if a.setLinkPeers(boottime()+absentTime+time.Second, l); isKnown() {
			t.Error("it is expected though it is silent for long")
		}
	})
}

// A frame counts as of when it came, not as of when it is read.
func TestFrameIsDated(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		threads := twoEnds(t, detect.Timers{})
		meet(t, threads)
		a, b, id := threads[0], threads[1], detect.NodeIDOf("b")
		before := boottime()
		nstest.Until(t, within, "a heartbeat", func() bool { b.step(); return b.detector.LastBeat() > before })
		after := boottime()
		nstest.Until(t, within, "a pause", func() bool { return boottime() > after+20*ms })
		a.receiveFrames(a.links[0])
		if at := a.links[0].detector.LastHeard(id); at < before || at > after {
			t.Errorf("a heartbeat between %v and %v counts as of %v", before, after, at)
		}
	})
}

// The nodes of many large links are not listed after each event. What this node finds out about its own end is.
func TestLinksAreListedSeldom(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		threads := twoEnds(t, detect.Timers{})
		meet(t, threads)
		a, at := threads[0], boottime()
		l := a.links[0]
		a.viewLinks(at)
		for i := range 1000 {
			l.ends[detect.NodeID(i)] = &farEnd{}
		}
		countListed := func(after time.Duration) int {
			a.viewLinks(at + after)
			return len(a.linkViews[0].Peers)
		}
		l.detector.SetRealtime(true)
		if n := countListed(ms); n != 1 || a.listPeersAt < at+1000*listTime {
			t.Errorf("%d nodes are listed, the next time after %v", n, a.listPeersAt-at)
		}
		l.detector.SetPeers(at, nil)
		if n := countListed(2 * ms); n != 1 {
			t.Errorf("%d nodes are listed at once, want the former one", n)
		}
		if n := countListed(time.Second); n != 0 || a.linkViews[0].State != detect.LinkUnknown {
			t.Errorf("%d nodes are listed, and the state is %d", n, a.linkViews[0].State)
		}
	})
}

// A flood of frames on one link takes nothing from another one.
func TestFloodOfOneLink(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		threads := twoEnds(t, detect.Timers{})
		meet(t, threads)
		self := nstest.Self(t)
		nstest.Veth(t, self, "f0", self, "f1")
		for i, name := range []string{"f0", "f1"} {
			threads[i].enqueue(order{Links: []Link{threads[i].links[0].Link, linkOf(self, name)}})
			threads[i].carryOutOrders()
		}

		a, b := threads[0], threads[1]
		for i, count := range []int{2 * a.readLimit, 1} {
			l := b.links[i]
			b.frames.fd = l.fd
			for range count {
				hello := l.detector.Hello()
				b.queueFrame(l, everyEnd, &hello)
			}
			b.frames.flush()
		}
		before := a.shared.received.Load()
		nstest.Until(t, within, "a hello on the second link", func() bool {
			for _, l := range a.links {
				a.receiveFrames(l)
			}
			return a.links[1].ends[detect.NodeIDOf("b")] != nil
		})
		if n := int(a.shared.received.Load() - before); n > a.readLimit {
			t.Errorf("%d frames are read, want %d at most", n, a.readLimit)
		}
	})
}

// A port of the second link dies with its carrier up: its node notices, the others agree, and the node stays alive.
// Then it is heard there again.
func TestPortOfSecondLinkDies(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		s := twoLinks(t, 3)
		s[0].lan.Output("ip", "link", "set", "p0.1", "nomaster")
		cut := boottime()
		l := s[0].await(t, "it hears none there", onLink(detect.LinkFails, 2, detect.Alive))
		t.Logf("it hears none after %v", l.At-cut)
		for _, o := range s[1:] {
			l = o.await(t, "it is dead there", onLink(detect.LinkWorks, 1, detect.Dead))
			t.Logf("dead there to %s after %v", o.name, l.At-cut)
			o.await(t, "it is alive", sees(s[0], detect.Alive))
		}

		s[0].lan.Enslave("p0.1", "br1")
		s[0].await(t, "it hears them again", onLink(detect.LinkWorks, 2, detect.Alive))
	})
}

// The network between the addresses dies for one node: frames go on.
func TestFirstLinkDies(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		s := twoLinks(t, 3)
		s[0].ns.SetDown("eth0")
		for _, o := range s[1:] {
			o.await(t, "it is dead by its address", sees(s[0], detect.Dead))
			o.await(t, "it is heard by frames", onLink(detect.LinkWorks, 2, detect.Alive))
		}
		s[0].await(t, "it hears them by frames", onLink(detect.LinkWorks, 2, detect.Alive))
	})
}

// A killed speaker is SpeakerDown on every link: its kernel refuses packets to its address.
func TestSpeakerDownOnLinks(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		s := twoLinks(t, 3, 200)
		s[0].signal(t, syscall.SIGKILL)
		for _, o := range s[1:] {
			o.await(t, "SpeakerDown", sees(s[0], detect.SpeakerDown))
			o.await(t, "SpeakerDown on the second link", onLink(detect.LinkWorks, 1, detect.SpeakerDown))
		}
	})
}

// A link that vanishes is not heard any more, and its node stays alive.
func TestSecondLinkVanishes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		s := twoLinks(t, 2)
		s[0].ns.Delete("eth1")
		s[1].await(t, "it hears none there", onLink(detect.LinkFails, 1, detect.Alive))
		s[1].await(t, "it is alive", sees(s[0], detect.Alive))
	})
}
