package heartbeat

import (
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/child"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/rt"
	"golang.org/x/net/bpf"
)

// TestChoice: the kernel has only routine heartbeats wait, whatever claims they repeat.
func TestChoice(t *testing.T) {
	vm, err := bpf.NewVM(choice)
	must(t, err)
	s := rt.NewSeals([][]byte{testKey}, sealKind)[0]
	random := rand.New(rand.NewPCG(1, 1))
	waiting := 0
	for flags := range 1 << 7 {
		bit := func(n int) bool { return flags>>n&1 != 0 }
		for _, numbers := range [][2]uint64{{0, 0}, {1, 0}, {1 << 63, 0}, {0, 1}, {0, 1 << 63}} {
			p := Packet{
				Watch: bit(0), Ping: bit(1), Heartbeat: bit(2), Complains: bit(3), HearsBadly: bit(4), Lost: bit(5), HearsNone: bit(6),
				From: NodeID(random.Uint64()), To: NodeID(random.Uint64()), Boot: random.Uint64(), Seq: random.Uint64(), Hold: time.Second,
				Challenge: numbers[0], Answer: numbers[1], Heartbeats: uint16(random.Uint64()), Claims: make([]NodeClaim, random.IntN(3)),
			}
			got, err := vm.Run(closed(s, nil, &p))
			if err != nil || got == 1 != p.routine() || got > 1 {
				t.Fatalf("%+v goes to socket %d, %v", p, got, err)
			}
			waiting += got
		}
	}
	if waiting != 2 {
		t.Errorf("%d kinds of packets wait, want two: with a watcher and without", waiting)
	}
}

// TestBeatsWait: a routine heartbeat wakes no thread, and counts as of when it came, before what was sent after it. A question wakes
// the thread at once, and so does a heartbeat of a suspect.
//
// Trap: of two sockets the one with the later packet is read first, and the earlier heartbeat counts as lost.
func TestBeatsWait(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, addresses := range [][2]string{{"127.0.0.1", "127.0.0.2"}, {"2001:db8::1", "2001:db8::2"}} {
			if netip.MustParseAddr(addresses[0]).Is6() {
				nstest.Self(t).AddAddress("lo", addresses[0]+"/128", addresses[1]+"/128")
			}
			var peers []Peer
			for i, name := range []string{"a", "b"} {
				peers = append(peers, Peer{name, netip.MustParseAddr(addresses[i]), true})
			}
			var threads [2]*thread
			for i, p := range peers {
				threads[i] = newTestThread(t, p, peers, Timers{Interval: time.Hour, Multiplier: 1})
				threads[i].step()
			}
			a, b := threads[0], threads[1]
			ofB, ofA := a.detector.peers[b.detector.self], b.detector.peers[a.detector.self]
			send := func(p Packet) {
				if p.Heartbeat {
					b.detector.heartbeats++
				}
				b.detector.sendOnly(ofA, p)
				b.send()
			}
			// waits reports whether the thread sleeps on, with a packet or two that it may read.
			waits := func(d time.Duration) bool {
				began := boottime()
				a.socket.wait(d, true, a.detector.HasSuspect(), true)
				return boottime()-began >= d
			}
			nstest.Until(t, within, "a session", func() bool {
				if ofB.lastHeard == 0 {
					send(Packet{})
				}
				a.step()
				b.look()
				b.step()
				return waits(ms) && ofB.lastHeard != 0
			})
			ofB.reception = newReception(b.detector.heartbeats + 1)

			before := boottime()
			send(Packet{Heartbeat: true})
			after := boottime()
			if !waits(50 * ms) {
				t.Errorf("%v: a routine heartbeat wakes the thread", addresses)
			}
			a.receive()
			if at := ofB.lastHeard; at < before-ms || at > after+ms {
				t.Errorf("%v: a heartbeat between %v and %v counts as of %v", addresses, before, after, at)
			}

			send(Packet{Heartbeat: true})
			send(Packet{Ping: true})
			if waits(within) {
				t.Errorf("%v: a question does not wake the thread", addresses)
			}
			a.receive()
			send(Packet{Heartbeat: true})
			a.detector.watching[0].suspicion = &suspicion{}
			if waits(within) {
				t.Errorf("%v: a suspect's heartbeat does not wake the thread", addresses)
			}
			a.receive()
			a.detector.TakePackets()
			send(Packet{Ping: true})
			send(Packet{Heartbeat: true})
			waits(within)
			if a.receive(); len(a.detector.TakePackets()) != 1 {
				t.Errorf("%v: a question is not answered, since a heartbeat came after it", addresses)
			}
			if r := ofB.reception; r.clean != 4 || r.share != fullReception {
				t.Errorf("%v: four heartbeats that came are %+v", addresses, r)
			}
		}
	})
}

// TestBatches: what is more than one system call takes or sends arrives whole and in order, beside packets that are refused.
//
// Trap: the error of one packet is reported by the next one, which is not sent.
func TestBatches(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		var peers []Peer
		for i, name := range []string{"a", "b", "nobody"} {
			peers = append(peers, Peer{name, netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)}), true})
		}
		var threads [2]*thread
		for i, p := range peers[:2] {
			threads[i] = newTestThread(t, p, peers, Timers{Interval: time.Hour, Multiplier: 1})
			threads[i].step()
		}
		a, b := threads[0], threads[1]
		ofA := b.detector.peers[a.detector.self]
		const sent = 3*batch + 5
		for i := range sent {
			b.detector.heartbeats++
			b.detector.sendOnly(ofA, Packet{Heartbeat: true, Ping: i%2 == 0})
			if i%5 == 0 {
				b.detector.sendOnly(b.detector.peers[NodeIDOf("nobody")], Packet{})
			}
		}
		b.send()
		for name, box := range map[string]*box{"urgent": a.socket.urgent, "beats": a.socket.beats} {
			numbers, want := []uint16{}, sent/2
			if name == "urgent" {
				want++
			}
			for n := box.take(1000, 0); n > 0; n = box.take(1000, 0) {
				for i := range n {
					p, ok := a.open(box.datagram(i))
					if !ok || box.from(i) != peers[1].Address {
						t.Errorf("%s: a packet of %v, %v", name, box.from(i), ok)
					}
					numbers = append(numbers, p.Heartbeats)
				}
			}
			if len(numbers) != want || !slices.IsSorted(numbers) {
				t.Errorf("%s: the heartbeats %v came, want %d in order", name, numbers, want)
			}
		}
		for range sent {
			b.detector.sendOnly(ofA, Packet{Ping: true})
			b.detector.sendOnly(ofA, Packet{Heartbeat: true})
		}
		b.send()
		a.look()
		if a.receive(); a.read != 2*sent || a.drained == 0 {
			t.Errorf("%d datagrams are read at once, want all %d", a.read, 2*sent)
		}
	})
}

// TestWake: whoever wakes a waiter, before it sleeps or while it does, ends that sleep and no other.
func TestWake(t *testing.T) {
	w, err := newWaiter()
	must(t, err)
	defer w.close()
	for i := range 1000 {
		woke := make(chan struct{})
		wake := func() {
			w.wake()
			close(woke)
		}
		if i == 0 {
			wake()
		} else {
			go wake()
		}
		began := boottime()
		w.sleep(within)
		if took := boottime() - began; took >= within {
			t.Fatalf("wake-up %d is lost", i)
		}
		<-woke
	}
	began := boottime()
	if w.sleep(10 * ms); boottime()-began < 10*ms {
		t.Error("it slept too little")
	}
}

// A node that has no peer any more sends the heartbeat process an empty list.
func TestNoPeerIsAnOrder(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	h, err := New(Config{Log: slog.New(slog.DiscardHandler), NodeName: "a", Keys: [][]byte{testKey}})
	must(t, err)
	h.child = &child.Process{Conn: ours}
	go func() {
		h.Set([]Peer{{Name: "b", Address: netip.MustParseAddr("2001:db8::2")}})
		h.Set(nil)
	}()
	in := json.NewDecoder(theirs)
	for _, want := range []int{1, 0} {
		var o order
		must(t, in.Decode(&o))
		if o.Peers == nil || len(o.Peers) != want {
			t.Errorf("the order is %+v, want %d peers", o, want)
		}
	}
}

// TestTimers: what can be set changes how long it takes until a lost node is dead to all.
//
// Trap: knobs that are stored and never looked at, as renewDeadline and retryPeriod (PureLB).
func TestTimers(t *testing.T) {
	for _, tt := range []struct {
		timers    Timers
		low, high time.Duration
	}{
		{Timers{}, 60 * ms, 250 * ms},
		{Timers{Interval: 200 * ms}, 500 * ms, 1100 * ms},
		{Timers{Multiplier: 20}, 350 * ms, 700 * ms},
	} {
		w := newWorldOf(12, 3, tt.timers)
		settle(t, w)
		w.nodes[0].stop()
		if took := w.must(t, 5*time.Second, w.all(w.nodes[0], Dead), "dead to all"); took < tt.low || took > tt.high {
			t.Errorf("with %+v it takes %v, want %v to %v", tt.timers, took, tt.low, tt.high)
		}
	}
}

// A node that was late asks for its least time and half more than it was late, as long as it remembers, and for no more than others
// could wait.
func TestLateAsksForMore(t *testing.T) {
	d := newDetector(Timers{}.WithDefaults(), true, func() uint64 { return 1 }, "a", time.Second)
	now := time.Second
	for _, tt := range []struct{ late, want time.Duration }{
		{0, 100 * ms}, {40 * ms, 160 * ms}, {0, 160 * ms}, {300 * ms, maxAdaptedHold}, {2 * time.Minute, maxAdaptedHold}, {0, maxAdaptedHold},
	} {
		now = d.lastTick + d.Interval + tt.late
		if d.heartbeat(now); d.hold != tt.want {
			t.Errorf("%v late it asks for %v, want %v", tt.late, d.hold, tt.want)
		}
	}
	for range int(2 * time.Minute / d.Interval) {
		now = d.lastTick + d.Interval
		d.heartbeat(now)
	}
	if d.hold != 100*ms {
		t.Errorf("two minutes later it asks for %v", d.hold)
	}
}
