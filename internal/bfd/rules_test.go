package bfd

import (
	"testing"
	"time"
)

func passive(p *Peer) { p.Passive = true }

// A session that is not wanted any more says so and ends; what comes later finds no session.
func TestLeave(t *testing.T) {
	w := newWorld(t, 8)
	w.both()
	w.settled()
	w.ends[0].sent, w.ends[1].deaf = nil, true
	w.ends[0].table.leave(w.now)
	if all := w.ends[0].table.statuses(w.now); len(all) > 0 {
		t.Errorf("it still reports %+v", all)
	}
	w.run(farewellInterval / 2)
	w.ends[1].deaf = false // the first was lost
	w.until(3*farewellInterval, "end 1 knows", w.is(1, Down))
	w.want(1, Down, AdminDown, Signaled)
	if w.status(1).Failures > 0 {
		t.Error("it counts as a failure")
	}
	w.run(time.Minute)
	e := w.ends[0]
	if n := len(e.sent); n != farewells {
		t.Errorf("%d packets after the end, want %d", n, farewells)
	}
	if len(e.table.sessions)+len(e.table.byMine) > 0 {
		t.Errorf("it is still there: %+v", e.table)
	}
}

// A passive session whose neighbor falls silent just then has nobody to say goodbye to, and ends.
func TestLeaveSilent(t *testing.T) {
	w := newWorld(t, 15)
	w.set(0, passive)
	w.set(1)
	w.settled()
	w.ends[1].frozen = true
	w.until(time.Second, "the neighbor is about to be given up", func() bool {
		at, _ := w.session(0).expiresAt()
		return at-w.now <= time.Millisecond
	})
	w.ends[0].table.leave(w.now)
	w.run(time.Second)
	if n := len(w.ends[0].table.sessions); n > 0 {
		t.Error("the session never ends")
	}
}

// Other addresses under the same name are another session; other settings are not.
func TestSetChanges(t *testing.T) {
	w := newWorld(t, 9)
	w.both()
	w.settled()
	mine := w.session(0).mine
	w.set(0, func(p *Peer) { p.Multiplier, p.Transmit = 5, 70*time.Millisecond })
	w.run(time.Second)
	if w.session(0).mine != mine || w.status(0).Ups != 1 || w.status(1).Failures > 0 {
		t.Error("other settings made another session")
	}
	if w.status(0).Transmit != 70*time.Millisecond || w.status(1).Detection != 5*70*time.Millisecond {
		t.Errorf("the settings are not in force: %+v, %+v", w.status(0), w.status(1))
	}
	w.set(0, func(p *Peer) { p.Source = addressA })
	if w.session(0).mine == mine {
		t.Error("the session has another source address and is the same")
	}
	w.settled()
}

// While the neighbor has not confirmed, a session sends as before and expects as before (RFC 5880 section 6.8.3).
func TestPollBeforeChange(t *testing.T) {
	w := newWorld(t, 10)
	w.both()
	w.settled()
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

// Until the Final the neighbor may send as rarely as before, and after it as often as it may now.
func TestReceiveInUse(t *testing.T) {
	x := timers{remoteTransmit: 10 * time.Millisecond, remoteMultiplier: 3}
	x.apply(time.Second, 100*time.Millisecond, false)
	x.apply(time.Second, 20*time.Millisecond, true)
	before := x.detection()
	x.confirmed()
	if after := x.detection(); before != 300*time.Millisecond || after != 60*time.Millisecond {
		t.Errorf("the detection time is %v before the Final, %v after it; want 300ms, 60ms", before, after)
	}
}

// The Final of one poll does not confirm what changed during that poll.
func TestPollAgain(t *testing.T) {
	var x timers
	x.apply(time.Second, time.Second, false)
	x.apply(2*time.Second, time.Second, true)
	x.apply(3*time.Second, time.Second, true)
	x.confirmed()
	if !x.polling || x.transmitInUse != time.Second {
		t.Errorf("the first Final settled the second change: %+v", x)
	}
	x.confirmed()
	if x.polling || x.transmitInUse != 3*time.Second {
		t.Errorf("the second Final did not: %+v", x)
	}
}

// A passive session is silent until it hears the neighbor; two of them never meet.
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
	w.until(time.Second, "it falls", w.is(0, Down))
	w.ends[0].sent = nil
	w.run(10 * time.Second)
	if n := len(w.ends[0].sent); n > 0 {
		t.Errorf("it sent %d packets to a neighbor that is gone", n)
	}
}

// A neighbor in demand mode gets no periodic packets, but a Final for each Poll, and its own packets still show that it
// lives (RFC 5880 section 6.6). One that accepts nothing gets nothing.
func TestRemoteDemand(t *testing.T) {
	w := newWorld(t, 12)
	w.both()
	w.settled()
	s := w.session(0)
	in := packet{state: Up, multiplier: 3, mine: s.yours, yours: s.mine, transmit: 50 * time.Millisecond, receive: 50 * time.Millisecond, demand: true}
	w.ends[1].frozen = true
	w.run(2 * w.delay) // what is under way arrives
	w.ends[0].sent = nil
	say := func(d time.Duration, p packet) {
		for end := w.now + d; w.now < end; w.run(50 * time.Millisecond) {
			s.receive(w.now, p)
		}
	}
	s.receive(w.now, in)
	say(time.Second, in)
	if n := len(w.ends[0].sent); n > 0 || s.state != Up {
		t.Errorf("%d packets to a neighbor in demand mode, state %v", n, s.state)
	}
	in.poll = true
	s.receive(w.now, in)
	w.run(0)
	if n := len(w.ends[0].sent); n != 1 || !w.ends[0].sent[0].packet.final || w.ends[0].sent[0].packet.poll {
		t.Errorf("a poll was answered by %d packets: %+v", n, w.ends[0].sent)
	}
	in.poll, in.demand, in.receive, w.ends[0].sent = false, false, 0, nil
	say(time.Second, in)
	if n := len(w.ends[0].sent); n > 0 {
		t.Errorf("%d packets to a neighbor that accepts none", n)
	}
	w.until(time.Second, "the neighbor is silent", w.is(0, Down))
}

// A poll is answered at once, and the answer does not delay the periodic packets.
func TestAnswer(t *testing.T) {
	w := newWorld(t, 13)
	w.both()
	w.settled()
	s := w.session(0)
	next := s.nextAt
	s.receive(w.now, packet{state: Up, multiplier: 3, mine: s.yours, yours: s.mine, transmit: 50 * time.Millisecond, receive: 50 * time.Millisecond, poll: true,
		final: true})
	if at, is := w.ends[0].table.due(w.now); !is || at != w.now {
		t.Error("the answer is not due at once")
	}
	w.ends[0].sent = nil
	w.ends[0].table.tick(w.now, func(_ *session, p *packet) {
		w.ends[0].sent = append(w.ends[0].sent, flight{packet: *p})
	})
	if len(w.ends[0].sent) != 1 || !w.ends[0].sent[0].packet.final || s.nextAt != next {
		t.Errorf("sent %+v, next %v, before %v", w.ends[0].sent, s.nextAt, next)
	}
}
