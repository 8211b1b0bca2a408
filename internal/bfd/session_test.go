package bfd

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// TestUp: a session comes up within two slow intervals, and then both sides send at their negotiated intervals.
func TestUp(t *testing.T) {
	seeds(t, 20, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		w.both()
		w.until(2500*time.Millisecond, "both are up", func() bool { return w.hasState(0, Up)() && w.hasState(1, Up)() })
		w.settled()
		for i := range w.ends {
			w.want(i, Up, Up, NoDiagnostic)
			if s := w.status(i); s.Transmit != 50*time.Millisecond || s.Detection != 150*time.Millisecond || s.Ups != 1 ||
				s.Failures != 0 {
				t.Errorf("end %d: %+v", i, s)
			}
		}
	})
}

// TestSlowStart: until it is up a session sends once a second at most, apart from changes of its state (RFC 5880
// section 6.8.3).
func TestSlowStart(t *testing.T) {
	w := newWorld(t, 1)
	w.set(0)
	w.run(60 * time.Second)
	if n := len(w.ends[0].sent); n < 60 || n > 80 {
		t.Errorf("%d packets in a minute without a neighbor, want 60 to 80: one in 750 to 1000 ms", n)
	}
	for _, f := range w.ends[0].sent {
		if p := f.packet; p.transmit < time.Second || p.receive != 50*time.Millisecond || p.poll || p.state != Down ||
			p.yourDiscr != 0 {
			t.Fatalf("sent %+v", p)
		}
	}
}

// gaps returns the times between the periodic packets of an end in the next d.
func (w *world) gaps(i int, d time.Duration) []time.Duration {
	w.ends[i].sent = nil
	w.run(d)
	var out []time.Duration
	for n, f := range w.ends[i].sent {
		if n > 0 {
			out = append(out, f.from-w.ends[i].sent[n-1].from)
		}
	}
	return out
}

// TestJitter: packets go out after 75 to 100 % of the interval, spread over all of that, and after 75 to 90 % if one
// lost packet is a failure (RFC 5880 section 6.8.7).
func TestJitter(t *testing.T) {
	for multiplier, longest := range map[uint8]time.Duration{3: 100 * time.Millisecond, 1: 90 * time.Millisecond} {
		w := newWorld(t, 7)
		w.set(0, func(p *Peer) { p.Transmit, p.Multiplier = 100*time.Millisecond, multiplier })
		w.set(1)
		w.settled()
		low, high := time.Hour, time.Duration(0)
		for _, g := range w.gaps(0, time.Minute) {
			low, high = min(low, g), max(high, g)
		}
		if low < 75*time.Millisecond || low > 76*time.Millisecond || high > longest || high < longest-time.Millisecond {
			t.Errorf("multiplier %d: packets after %v to %v, want all of 75ms to %v", multiplier, low, high, longest)
		}
	}
}

// TestNegotiation: each side sends at the slower of its own interval and what the other accepts, and expects by the
// other's multiplier.
func TestNegotiation(t *testing.T) {
	w := newWorld(t, 2)
	w.set(0, func(p *Peer) { p.Transmit, p.Receive, p.Multiplier = 40*time.Millisecond, 200*time.Millisecond, 5 })
	w.set(1, func(p *Peer) { p.Transmit, p.Receive, p.Multiplier = 100*time.Millisecond, 60*time.Millisecond, 2 })
	w.settled()
	for i, want := range []struct{ transmit, detection time.Duration }{
		{60 * time.Millisecond, 2 * 200 * time.Millisecond}, {200 * time.Millisecond, 5 * 60 * time.Millisecond},
	} {
		if s := w.status(i); s.Transmit != want.transmit || s.Detection != want.detection {
			t.Errorf("end %d sends each %v and waits %v, want %+v", i, s.Transmit, s.Detection, want)
		}
	}
}

// TestDetection: a silent neighbor is given up after its detection time, and not earlier.
func TestDetection(t *testing.T) {
	seeds(t, 20, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		w.ends[1].frozen = true
		w.run(2 * w.delay) // its last packet arrives
		last := w.session(0).heardAt
		w.until(time.Second, "end 0 is down", w.hasState(0, Down))
		if took := w.at - last; took < 150*time.Millisecond || took > 152*time.Millisecond {
			t.Errorf("given up %v after the last packet, want 150ms", took)
		}
		w.want(0, Down, Down, Expired)
		if s := w.status(0); s.Failures != 1 || s.Detection != 0 {
			t.Errorf("%+v", s)
		}
		w.ends[1].frozen = false
		w.up()
	})
}

// TestOneWayLoss: one-way loss: the side that hears nothing says so, and the other falls at once instead of never.
func TestOneWayLoss(t *testing.T) {
	w := settled(t, 3)
	w.ends[0].deaf = true
	w.until(time.Second, "the deaf one is down", w.hasState(0, Down))
	w.until(5*time.Millisecond, "the other one is down", w.hasState(1, Down))
	w.want(0, Down, Down, Expired)
	w.want(1, Down, Down, Signaled)
	if w.status(1).Failures != 1 {
		t.Errorf("%+v", w.status(1))
	}
	w.run(10 * time.Second)
	if w.hasState(1, Up)() {
		t.Error("a session is up whose packets the neighbor does not receive")
	}
	w.ends[0].deaf = false
	w.up()
}

// TestLossAndReordering: a lossy network that reorders: sessions come up, and fall only when a run of packets is lost.
func TestLossAndReordering(t *testing.T) {
	seeds(t, 30, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		w.spread = 120 * time.Millisecond // packets overtake the two before
		for i := range w.ends {
			w.set(i, func(p *Peer) { p.Multiplier = 5 })
		}
		w.settled() // possibly after some flaps: an old Down may overtake an Up
		before := w.status(0).Failures + w.status(1).Failures
		w.run(time.Minute)
		if after := w.status(0).Failures + w.status(1).Failures; after > before {
			t.Errorf("reordering alone brought the session down %d times", after-before)
		}
		w.loss = 30
		w.run(10 * time.Minute)
		w.loss = 0
		w.up()
		w.until(10*time.Second, "intervals are negotiated again", func() bool {
			return w.status(0).Transmit == 50*time.Millisecond && w.status(1).Transmit == 50*time.Millisecond &&
				!w.session(0).polling && !w.session(1).polling
		})
	})
}

// TestFrozenShortly: a process that did not run for less than the detection time reads what came meanwhile before it
// judges.
func TestFrozenShortly(t *testing.T) {
	w := settled(t, 4)
	w.ends[0].frozen = true
	w.run(100 * time.Millisecond)
	w.ends[0].frozen = false
	w.run(5 * time.Second)
	if w.status(0).Failures+w.status(1).Failures > 0 {
		t.Error("100 ms without a run brought the session down")
	}
}

// TestRestart: a neighbor that starts again with another discriminator is found by its address, and the session falls
// at once.
func TestRestart(t *testing.T) {
	w := settled(t, 5)
	w.ends[1].table = newTable(w.random.Uint64)
	w.set(1)
	w.until(10*time.Millisecond, "end 0 knows", func() bool { return w.status(0).Failures == 1 })
	if w.session(0).diagnostic != Signaled {
		t.Errorf("the diagnostic is %v", w.session(0).diagnostic)
	}
	w.settled()
	if s := w.status(0); s.Ups != 2 || s.Failures != 1 {
		t.Errorf("%+v", s)
	}
}

func passive(p *Peer) { p.Passive = true }

// TestLeave: a session that is not wanted any more says so and ends; what comes later finds no session.
func TestLeave(t *testing.T) {
	w := settled(t, 8)
	w.ends[0].sent, w.ends[1].deaf = nil, true
	w.ends[0].table.set(w.at, nil)
	if all := w.ends[0].table.statuses(w.at); len(all) > 0 {
		t.Errorf("it still reports %+v", all)
	}
	w.run(farewellInterval / 2)
	w.ends[1].deaf = false // the first was lost
	w.until(3*farewellInterval, "end 1 knows", w.hasState(1, Down))
	w.want(1, Down, AdminDown, Signaled)
	if w.status(1).Failures > 0 {
		t.Error("it counts as a failure")
	}
	w.run(time.Minute)
	e := w.ends[0]
	if n := len(e.sent); n != farewells {
		t.Errorf("%d packets after the end, want %d", n, farewells)
	}
	if len(e.table.sessions) > 0 {
		t.Errorf("it is still there: %+v", e.table)
	}
}

// TestLeaveSilent: a passive session whose neighbor falls silent just then has no neighbor to report to, and ends.
func TestLeaveSilent(t *testing.T) {
	w := newWorld(t, 15)
	w.set(0, passive)
	w.set(1)
	w.settled()
	w.ends[1].frozen = true
	w.until(time.Second, "the neighbor is about to be given up", func() bool {
		return w.session(0).expiresAt()-w.at <= time.Millisecond
	})
	w.ends[0].table.set(w.at, nil)
	w.run(time.Second)
	if n := len(w.ends[0].table.sessions); n > 0 {
		t.Error("the session never ends")
	}
}

// TestSetChanges: other addresses under the same name are another session; other settings are not.
func TestSetChanges(t *testing.T) {
	w := settled(t, 9)
	mine := w.session(0).myDiscr
	w.set(0, func(p *Peer) { p.Multiplier, p.Transmit = 5, 70*time.Millisecond })
	w.run(time.Second)
	if w.session(0).myDiscr != mine || w.status(0).Ups != 1 || w.status(1).Failures > 0 {
		t.Error("other settings made another session")
	}
	if w.status(0).Transmit != 70*time.Millisecond || w.status(1).Detection != 5*70*time.Millisecond {
		t.Errorf("the settings are not in force: %+v, %+v", w.status(0), w.status(1))
	}
	w.set(0, func(p *Peer) { p.Source = addressA })
	if w.session(0).myDiscr == mine {
		t.Error("the session has another source address and is the same")
	}
	w.settled()
}

// TestPollBeforeChange: while the neighbor has not confirmed, a session sends as before and expects as before (RFC 5880
// section 6.8.3).
func TestPollBeforeChange(t *testing.T) {
	w := settled(t, 10)
	w.ends[0].deaf = true // no Final arrives
	w.set(0, func(p *Peer) { p.Transmit, p.Receive = 90*time.Millisecond, 20*time.Millisecond })
	w.ends[0].sent = nil
	w.run(100 * time.Millisecond)
	for _, f := range w.ends[0].sent {
		if p := f.packet; !p.poll || p.final || p.transmit != 90*time.Millisecond || p.receive != 20*time.Millisecond {
			t.Errorf("sent %+v", p)
		}
	}
	if s := w.status(0); s.State != Up || s.Transmit != 50*time.Millisecond || s.Detection != 150*time.Millisecond {
		t.Errorf("unconfirmed and already in force: %+v", s)
	}
	w.ends[0].deaf = false
	w.run(time.Second)
	if s := w.status(0); s.Transmit != 90*time.Millisecond || s.Detection != 150*time.Millisecond || w.session(0).polling {
		t.Errorf("confirmed and not in force: %+v", s)
	}
	// The neighbor keeps sending at 50 ms: that is its own wish, which counts.
	w.set(1, func(p *Peer) { p.Transmit = 20 * time.Millisecond })
	w.run(time.Second)
	if s := w.status(0); s.Detection != 60*time.Millisecond {
		t.Errorf("the neighbor sends each 20 ms: %+v", s)
	}
}

// TestReceiveInUse: until the Final the neighbor may send as rarely as before, and after it as often as it may now.
func TestReceiveInUse(t *testing.T) {
	x := timers{remoteTransmit: 10 * time.Millisecond, remoteMultiplier: 3}
	x.apply(time.Second, 100*time.Millisecond, false)
	x.apply(time.Second, 20*time.Millisecond, true)
	before := x.detection()
	x.confirm()
	if after := x.detection(); before != 300*time.Millisecond || after != 60*time.Millisecond {
		t.Errorf("the detection time is %v before the Final, %v after it; want 300ms, 60ms", before, after)
	}
}

// TestPollAgain: the Final of one poll does not confirm what changed during that poll.
func TestPollAgain(t *testing.T) {
	var x timers
	x.apply(time.Second, time.Second, false)
	x.apply(2*time.Second, time.Second, true)
	x.apply(3*time.Second, time.Second, true)
	x.confirm()
	if !x.polling || x.transmitInUse != time.Second {
		t.Errorf("the first Final settled the second change: %+v", x)
	}
	x.confirm()
	if x.polling || x.transmitInUse != 3*time.Second {
		t.Errorf("the second Final did not: %+v", x)
	}
}

// TestPassive: a passive session is silent until it hears the neighbor; two of them never meet.
func TestPassive(t *testing.T) {
	w := newWorld(t, 11)
	w.set(0, passive)
	w.run(10 * time.Second)
	if n := len(w.ends[0].sent); n > 0 {
		t.Errorf("it sent %d packets to a neighbor that it never heard", n)
	}
	w.set(1, passive)
	w.run(10 * time.Second)
	if len(w.ends[0].sent)+len(w.ends[1].sent) > 0 {
		t.Error("two passive ends exchange packets")
	}
	w.set(1)
	w.settled()
	w.ends[1].frozen = true
	w.until(time.Second, "it falls", w.hasState(0, Down))
	w.ends[0].sent = nil
	w.run(10 * time.Second)
	if n := len(w.ends[0].sent); n > 0 {
		t.Errorf("it sent %d packets to a neighbor that is gone", n)
	}
}

// TestRemoteDemand: a neighbor in demand mode gets no periodic packets, but a Final for each Poll, and its own packets
// still show that it lives (RFC 5880 section 6.6). A neighbor that accepts no packets gets none.
func TestRemoteDemand(t *testing.T) {
	w := settled(t, 12)
	s := w.session(0)
	in := packet{state: Up, multiplier: 3, myDiscr: s.yourDiscr, yourDiscr: s.myDiscr,
		transmit: 50 * time.Millisecond, receive: 50 * time.Millisecond, demand: true}
	w.ends[1].frozen = true
	w.run(2 * w.delay) // what is under way arrives
	w.ends[0].sent = nil
	say := func(d time.Duration, p packet) {
		for end := w.at + d; w.at < end; w.run(50 * time.Millisecond) {
			s.receive(w.at, p)
		}
	}
	s.receive(w.at, in)
	say(time.Second, in)
	if n := len(w.ends[0].sent); n > 0 || s.state != Up {
		t.Errorf("%d packets to a neighbor in demand mode, state %v", n, s.state)
	}
	in.poll = true
	s.receive(w.at, in)
	w.run(0)
	if n := len(w.ends[0].sent); n != 1 || !w.ends[0].sent[0].packet.final || w.ends[0].sent[0].packet.poll {
		t.Errorf("a poll was answered by %d packets: %+v", n, w.ends[0].sent)
	}
	in.poll = false
	in.demand = false
	in.receive = 0
	w.ends[0].sent = nil
	say(time.Second, in)
	if n := len(w.ends[0].sent); n > 0 {
		t.Errorf("%d packets to a neighbor that accepts none", n)
	}
	w.until(time.Second, "the neighbor is silent", w.hasState(0, Down))
}

// TestAnswer: a poll is answered at once, and the answer does not delay the periodic packets.
func TestAnswer(t *testing.T) {
	w := settled(t, 13)
	s := w.session(0)
	next := s.nextAt
	s.receive(w.at, packet{state: Up, multiplier: 3, myDiscr: s.yourDiscr, yourDiscr: s.myDiscr,
		transmit: 50 * time.Millisecond, receive: 50 * time.Millisecond, poll: true,
		final: true})
	if w.ends[0].table.due(w.at) != w.at {
		t.Error("the answer is not due at once")
	}
	w.ends[0].sent = nil
	w.ends[0].table.tick(w.at, func(_ *session, p *packet) {
		w.ends[0].sent = append(w.ends[0].sent, flight{packet: *p})
	})
	if len(w.ends[0].sent) != 1 || !w.ends[0].sent[0].packet.final || s.nextAt != next {
		t.Errorf("sent %+v, next %v, before %v", w.ends[0].sent, s.nextAt, next)
	}
}

// minInterval is the shortest interval of a BFDProfile.
const minInterval = 10 * time.Millisecond

func good() Peer {
	return Peer{
		Name: "a", Address: addressB, Transmit: 300 * time.Millisecond, Receive: 300 * time.Millisecond, Multiplier: 3,
	}
}

// TestSetBounds: all sessions together have a bounded cost; those beyond it are refused and the others keep running.
func TestSetBounds(t *testing.T) {
	for interval, want := range map[time.Duration]int{minInterval: maxPacketRate / 200, time.Second: maxSessions} {
		w := newWorld(t, 1)
		var peers []Peer
		for i := range 300 {
			p := good()
			p.Name, p.Address = fmt.Sprintf("%03d", i), netip.AddrFrom4([4]byte{10, 0, byte(i / 256), byte(i)})
			p.Transmit, p.Receive = interval, interval
			peers = append(peers, p)
		}
		table := w.ends[0].table
		table.set(w.at, peers)
		if n := len(table.sessions); n != want || len(table.refused) != len(peers)-want {
			t.Errorf("%v: %d sessions, want %d", interval, n, want)
		}
		mine := table.byName["000"].myDiscr
		table.set(w.at, peers)
		if len(table.sessions) != want || table.byName["000"].myDiscr != mine {
			t.Errorf("%v: the same again changed the sessions", interval)
		}
	}
}
