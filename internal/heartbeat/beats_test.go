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
	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/rt"
	"golang.org/x/net/bpf"
)

// routine reports whether a packet is a heartbeat that may wait in the kernel.
func routine(p *detect.Packet) bool {
	return p.Heartbeat && !p.Ping && !p.Complains && !p.Lost && !p.HearsBadly && !p.HearsNone && p.Challenge == 0 &&
		p.Answer == 0
}

// TestChoice: the kernel has only routine heartbeats wait, whatever claims they repeat.
func TestChoice(t *testing.T) {
	vm, err := bpf.NewVM(routineFilter)
	must(t, err)
	s := rt.NewSeals([][]byte{testKey}, sealKind)[0]
	random := rand.New(rand.NewPCG(1, 1))
	waiting := 0
	for flags := range 1 << 7 {
		bit := func(n int) bool { return flags>>n&1 != 0 }
		for _, numbers := range [][2]uint64{{0, 0}, {1, 0}, {1 << 63, 0}, {0, 1}, {0, 1 << 63}} {
			p := detect.Packet{
				Watch: bit(0), Ping: bit(1), Heartbeat: bit(2), Complains: bit(3), HearsBadly: bit(4), Lost: bit(5),
				HearsNone: bit(6),
				From:      detect.NodeID(random.Uint64()), To: detect.NodeID(random.Uint64()), Boot: random.Uint64(),
				Seq:  random.Uint64(),
				Hold: time.Second, Challenge: numbers[0], Answer: numbers[1], Heartbeats: uint16(random.Uint64()),
				Claims: make([]detect.NodeClaim, random.IntN(3)),
			}
			got, err := vm.Run(sealPacket(s, nil, &p))
			if err != nil || got == 1 != routine(&p) || got > 1 {
				t.Fatalf("%+v goes to socket %d, %v", p, got, err)
			}
			waiting += got
		}
	}
	if waiting != 2 {
		t.Errorf("%d kinds of packets wait, want two: with a watcher and without", waiting)
	}
}

// recorder notes what a thread hands to its detector.
type recorder struct {
	*detect.Detector
	packets []detect.Packet
	times   []time.Duration
}

// record has a recorder note what arrives at a thread from now on.
func record(t *beatThread) *recorder {
	r := &recorder{Detector: t.detector}
	t.receiver = r
	return r
}

func (r *recorder) Receive(at time.Duration, p detect.Packet) {
	r.packets, r.times = append(r.packets, p), append(r.times, at)
	r.Detector.Receive(at, p)
}

// sender sends packets of a thread that the test writes, in a session.
type sender struct {
	*beatThread
	last detect.Packet
}

// queue adds a packet to the next batch.
func (s *sender) queue(p detect.Packet) {
	s.last.Seq++
	if p.Heartbeat {
		s.last.Heartbeats++
	}
	p.From = s.last.From
	p.Boot = s.last.Boot
	p.Seq = s.last.Seq
	p.Heartbeats = s.last.Heartbeats
	p.Hold, p.Watch = s.last.Hold, s.last.Watch
	if p.To == 0 {
		p.To = s.last.To
	}
	s.sockets.out.queue(s.seals[0], &p, s.addrs[p.To])
}

// sendNow sends a packet at once.
func (s *sender) sendNow(p detect.Packet) {
	s.queue(p)
	s.sockets.out.flush()
}

// TestBeatsWait: a routine heartbeat wakes no thread, and counts as of when it came, before what was sent after it. A
// question wakes the thread at once, and so does a heartbeat of a suspect.
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
			var threads [2]*beatThread
			for i, p := range peers {
				threads[i] = newTestThread(t, p, peers, detect.Timers{Interval: time.Hour, Multiplier: 1})
				threads[i].step()
			}
			a, b := threads[0], threads[1]
			seen := record(a)
			s := &sender{b, detect.Packet{From: detect.NodeIDOf("b"), To: detect.NodeIDOf("a"), Boot: 1, Hold: time.Second}}
			// waits reports whether the thread sleeps on, with a packet or two that it may read.
			waits := func(d time.Duration) bool {
				began := boottime()
				a.wait(d, true)
				return boottime()-began >= d
			}
			hears := func() bool {
				return slices.ContainsFunc(a.detector.View(boottime()).Members, func(m detect.Member) bool {
					return m.Name == "b" && m.Heard
				})
			}
			nstest.Until(t, within, "a session", func() bool {
				if !hears() {
					s.sendNow(detect.Packet{})
				}
				a.step()
				b.wait(0, true)
				b.step()
				return waits(ms) && hears()
			})
			session := len(seen.packets)
			s.last = seen.packets[session-1]

			before := boottime()
			s.sendNow(detect.Packet{Heartbeat: true})
			after := boottime()
			if !waits(50 * ms) {
				t.Errorf("%v: a routine heartbeat wakes the thread", addresses)
			}
			a.receive()
			if at := seen.times[len(seen.times)-1]; len(seen.packets) != session+1 || at < before-ms || at > after+ms {
				t.Errorf("%v: a heartbeat between %v and %v counts as of %v", addresses, before, after, at)
			}

			s.sendNow(detect.Packet{Heartbeat: true})
			s.sendNow(detect.Packet{Ping: true})
			if waits(within) {
				t.Errorf("%v: a question does not wake the thread", addresses)
			}
			a.receive()
			s.sendNow(detect.Packet{Heartbeat: true})
			if a.detector.Tick(boottime() + time.Minute); !a.detector.HasSuspect() {
				t.Fatalf("%v: a minute of silence makes no suspect", addresses)
			}
			if waits(within) {
				t.Errorf("%v: a suspect's heartbeat does not wake the thread", addresses)
			}
			if a.receive(); a.detector.HasSuspect() {
				t.Errorf("%v: a suspect's heartbeat does not clear it", addresses)
			}
			a.detector.TakePackets()
			s.sendNow(detect.Packet{Ping: true})
			s.sendNow(detect.Packet{Heartbeat: true})
			waits(within)
			if a.receive(); len(a.detector.TakePackets()) != 1 {
				t.Errorf("%v: a question is not answered, since a heartbeat came after it", addresses)
			}
			came := seen.packets[session:]
			if len(came) != 6 {
				t.Errorf("%v: %d packets came, want 6", addresses, len(came))
			}
			for i, p := range came {
				if want := s.last.Seq - uint64(len(came)-1-i); p.Seq != want {
					t.Errorf("%v: packet %d of %d has number %d, want %d", addresses, i+1, len(came), p.Seq, want)
				}
			}
		}
	})
}

// TestBatches: what is more than one system call takes or sends arrives whole and in order, beside packets that are
// refused.
//
// Trap: the error of one packet is reported by the next one, which is not sent.
func TestBatches(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		var peers []Peer
		for i, name := range []string{"a", "b", "absent"} {
			peers = append(peers, Peer{name, netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)}), true})
		}
		var threads [2]*beatThread
		for i, p := range peers[:2] {
			threads[i] = newTestThread(t, p, peers, detect.Timers{Interval: time.Hour, Multiplier: 1})
			threads[i].step()
		}
		a := threads[0]
		s := &sender{
			threads[1], detect.Packet{From: detect.NodeIDOf("b"), To: detect.NodeIDOf("a"), Boot: 1, Hold: time.Second},
		}
		const sent = 3*maxBatch + 5
		for i := range sent {
			s.queue(detect.Packet{Heartbeat: true, Ping: i%2 == 0})
			if i%5 == 0 {
				s.queue(detect.Packet{To: detect.NodeIDOf("absent")})
			}
		}
		s.sockets.out.flush()
		for name, box := range map[string]*batchSocket{"urgent": a.sockets.urgent, "beats": a.sockets.routine} {
			numbers, want := []uint16{}, sent/2
			if name == "urgent" {
				want++
			}
			for n := box.receive(1000, 0); n > 0; n = box.receive(1000, 0) {
				for i := range n {
					p, ok := a.open(box.datagram(i))
					if !ok || box.sender(i) != peers[1].Address {
						t.Errorf("%s: a packet of %v, %v", name, box.sender(i), ok)
					}
					numbers = append(numbers, p.Heartbeats)
				}
			}
			if len(numbers) != want || !slices.IsSorted(numbers) {
				t.Errorf("%s: the heartbeats %v came, want %d in order", name, numbers, want)
			}
		}
		for range sent {
			s.queue(detect.Packet{Ping: true})
			s.queue(detect.Packet{Heartbeat: true})
		}
		s.sockets.out.flush()
		a.wait(0, true)
		if a.receive(); a.read != 2*sent || a.drainedAt == 0 {
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
