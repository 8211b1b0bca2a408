package bfd

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A neighbor that authenticates its packets is refused, and the status shows it, until it stops or for a while: one packet may be
// forged, and BGP waits meanwhile.
func TestAuthenticationRefused(t *testing.T) {
	w := newWorld(t, 1)
	w.set(0)
	p := packet{state: Down, multiplier: 3, mine: 9, transmit: time.Second, receive: time.Second}
	var b [packetLen]byte
	p.marshal(&b)
	with := append(b[:], 1, 4, 0, 'x')
	with[1] |= authenticationBit
	with[3] = byte(len(with))
	w.ends[0].table.receive(w.now, w.session(0), with)
	if s := w.status(0); s.State != Down || s.Received != 0 || s.Rejected != 1 || s.Cause != Authenticates {
		t.Errorf("%+v", s)
	}
	w.run(authenticatedTime)
	if s := w.status(0); s.Cause != NoCause || s.Error != "" {
		t.Errorf("after a while: %+v", s)
	}
	w.ends[0].table.receive(w.now, w.session(0), with)
	w.ends[0].table.receive(w.now, w.session(0), b[:])
	if s := w.status(0); s.State != Init || s.Cause != NoCause {
		t.Errorf("without authentication: %+v", s)
	}
}

// One peer cannot speak for another: what comes for one session with the discriminator of another is nobody's.
func TestNobodySpeaksForAnother(t *testing.T) {
	w := newWorld(t, 2)
	w.both()
	w.settled()
	s := w.session(0)
	p := packet{state: Down, multiplier: 3, mine: 9, yours: s.mine + 1}
	var b [packetLen]byte
	p.marshal(&b)
	w.ends[0].table.receive(w.now, s, b[:])
	if s.state != Up || s.rejected != 1 {
		t.Errorf("the state is %v, %d were rejected", s.state, s.rejected)
	}
}

// Whatever a neighbor sends, the table stays whole: it has a next time that is not in the past for ever, it answers
// each packet by two at most, and the session comes up again when the neighbor is itself again.
func TestHostileNeighbor(t *testing.T) {
	seeds(t, 50, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		w.both()
		r := rand.New(rand.NewPCG(seed, 2))
		for range 2000 {
			w.run(time.Duration(r.Uint64N(uint64(20 * time.Millisecond))))
			s := w.session(0)
			p := packet{
				diagnostic: Diagnostic(r.Uint64N(32)), state: State(r.Uint64N(4)), poll: r.Uint64N(2) == 0, final: r.Uint64N(2) == 0,
				demand: r.Uint64N(2) == 0, multiplier: uint8(r.Uint64N(256)), mine: r.Uint32(), yours: s.mine * uint32(r.Uint64N(2)),
				transmit: time.Duration(r.Uint32()) >> r.Uint64N(32) * time.Microsecond, receive: time.Duration(r.Uint32()) >> r.Uint64N(32) * time.Microsecond,
			}
			var b [packetLen]byte
			p.marshal(&b)
			before := len(w.ends[0].sent)
			w.ends[0].table.receive(w.now, s, b[:r.Uint64N(packetLen+1)])
			w.ends[0].table.receive(w.now, s, b[:])
			w.tick(0)
			if n := len(w.ends[0].sent) - before; n > 3 {
				t.Fatalf("one packet caused %d", n)
			}
			if at, is := w.ends[0].table.due(w.now); is && at <= w.now {
				t.Fatalf("something is due at once, again and again: %+v", *s)
			}
		}
		// Its last word may have been a detection time of days; a restart ends that.
		w.ends[1].table = newTable(w.random.Uint64)
		w.set(1)
		w.settled()
	})
}

// FuzzTable feeds datagrams to a table with a session that is up.
func FuzzTable(f *testing.F) {
	var b [packetLen]byte
	p := sample()
	p.marshal(&b)
	f.Add(b[:], true)
	f.Fuzz(func(t *testing.T, in []byte, known bool) {
		w := newWorld(t, 1)
		w.both()
		w.settled()
		if s := w.session(0); known && len(in) >= packetLen {
			p, _ := parse(in)
			p.yours = s.mine
			p.marshal((*[packetLen]byte)(in[:packetLen]))
		}
		w.ends[0].table.receive(w.now, w.session(0), in)
		w.run(time.Second)
		if at, is := w.ends[0].table.due(w.now); is && at <= w.now {
			t.Errorf("something is due at once for ever")
		}
	})
}
