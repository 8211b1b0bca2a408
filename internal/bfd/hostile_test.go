package bfd

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

// A neighbor that authenticates its packets is refused, and the status says so.
func TestAuthenticationRefused(t *testing.T) {
	w := newWorld(t, 1)
	w.set(0)
	p := packet{state: Down, multiplier: 3, mine: 9, transmit: time.Second, receive: time.Second}
	var b [packetLen]byte
	p.marshal(&b)
	with := append(b[:], 1, 4, 0, 'x')
	with[1] |= authenticationBit
	with[3] = byte(len(with))
	w.ends[0].table.receive(w.now, origin{from: addressB, ttl: 255}, with)
	if s := w.status(0); s.State != Down || s.Received != 0 || s.Rejected != 1 || s.Error == "" {
		t.Errorf("%+v", s)
	}
	w.ends[0].table.receive(w.now, origin{from: addressB, ttl: 255}, b[:])
	if s := w.status(0); s.State != Init || s.Error != "" {
		t.Errorf("without authentication: %+v", s)
	}
}

// One peer cannot speak for another, even if it knows the discriminator.
func TestNobodySpeaksForAnother(t *testing.T) {
	w := newWorld(t, 2)
	w.both()
	w.settled()
	s := w.session(0)
	p := packet{state: Down, multiplier: 3, mine: 9, yours: s.mine}
	var b [packetLen]byte
	p.marshal(&b)
	w.ends[0].table.receive(w.now, origin{from: addressA, ttl: 255}, b[:])
	if s.state != Up || w.ends[0].table.unknown != 1 {
		t.Errorf("the state is %v", s.state)
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
			w.ends[0].table.receive(w.now, origin{from: addressB, ttl: 255}, b[:r.Uint64N(packetLen+1)])
			w.ends[0].table.receive(w.now, origin{from: addressB, ttl: 255}, b[:])
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
	f.Add(b[:], uint8(255), true)
	f.Fuzz(func(t *testing.T, in []byte, ttl uint8, known bool) {
		w := newWorld(t, 1)
		w.both()
		w.settled()
		if s := w.session(0); known && len(in) >= packetLen {
			p, _ := parse(in)
			p.yours = s.mine
			p.marshal((*[packetLen]byte)(in[:packetLen]))
		}
		w.ends[0].table.receive(w.now, origin{from: addressB, ttl: ttl}, in)
		w.run(time.Second)
		if at, is := w.ends[0].table.due(w.now); is && at <= w.now {
			t.Errorf("something is due at once for ever")
		}
	})
}

// Routers on two links may have one link-local address. Each packet is its own link's session's, by its discriminator or
// without one (RFC 5881 section 6).
func TestOneAddressOnTwoLinks(t *testing.T) {
	w := newWorld(t, 3)
	router := netip.MustParseAddr("fe80::a")
	table := w.ends[0].table
	var peers []Peer
	for _, name := range []string{"eth0", "eth1"} {
		peers = append(peers, Peer{Name: name, Address: router, Interface: name, Transmit: time.Second, Receive: time.Second, Multiplier: 3})
	}
	table.set(w.now, peers)
	for i, name := range []string{"eth0", "eth1"} {
		table.byName[name].link = i + 1
	}
	send := func(link int, yours uint32) {
		p := packet{state: Down, multiplier: 3, mine: 9, yours: yours, transmit: time.Second, receive: time.Second}
		var b [packetLen]byte
		p.marshal(&b)
		table.receive(w.now, origin{from: router, ttl: 255, link: link}, b[:])
	}
	send(2, 0)
	if a, b := table.byName["eth0"], table.byName["eth1"]; a.received != 0 || b.received != 1 || b.state != Init {
		t.Errorf("eth0 received %d, eth1 %d and is %v", a.received, b.received, b.state)
	}
	send(2, table.byName["eth0"].mine)
	send(3, 0)
	if a := table.byName["eth0"]; a.received != 0 || table.unknown != 2 {
		t.Errorf("eth0 received %d, and %d are unknown", a.received, table.unknown)
	}
}
