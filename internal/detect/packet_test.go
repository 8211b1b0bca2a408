package detect

import (
	"bytes"
	"reflect"
	"testing"
	"time"
)

func testPacket(claims int) Packet {
	p := Packet{From: 1, To: 2, Boot: 3, Seq: 4, Challenge: 5, Answer: 6, Hold: 150 * ms, Watch: true, Ping: true}
	for i := range claims {
		p.Claims = append(p.Claims, NodeClaim{
			About: NodeID(i), Status: Status(i%int(Left) + 1), Deaths: 3, Incarnation: uint32(i),
		})
	}
	return p
}

func TestPacket(t *testing.T) {
	for _, n := range []int{0, 1, maxClaims} {
		want := testPacket(n)
		b := want.Append(nil)
		got, ok := ParsePacket(b, nil)
		if !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v became %+v, %v", want, got, ok)
		}
		for i := range b {
			if _, ok := ParsePacket(b[:i], nil); ok {
				t.Errorf("the first %d octets of %d are a packet", i, len(b))
			}
		}
	}
	longest := testPacket(maxClaims)
	if n := len(longest.Append(nil)); n != MaxPacketLen {
		t.Errorf("the longest packet has %d octets, want %d", n, MaxPacketLen)
	}
}

func FuzzPacket(f *testing.F) {
	for _, n := range []int{0, 3} {
		p := testPacket(n)
		f.Add(p.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := ParsePacket(b, nil)
		if !ok {
			return
		}
		if again := p.Append(nil); !bytes.Equal(again, b) {
			t.Errorf("%x became %x", b, again)
		}
	})
}

// FuzzReceive: no packet of a peer that has the key brings the detector down, or
// this node to call itself dead.
func FuzzReceive(f *testing.F) {
	p := testPacket(5)
	f.Add(p.Append(nil), uint16(20))
	f.Fuzz(func(t *testing.T, b []byte, after uint16) {
		p, ok := ParsePacket(b, nil)
		if !ok {
			return
		}
		w := newWorld(1, 4)
		w.after(300 * ms)
		from, to := w.nodes[1], w.nodes[0]
		p.From = from.id
		p.To = to.id
		p.Boot = from.d.boot
		p.Seq = from.d.seq + 1
		for i := range p.Claims {
			p.Claims[i].About = w.nodes[int(p.Claims[i].About%4)].id
		}
		to.d.Receive(to.clock(), p)
		w.after(time.Duration(after) * ms)
		if !to.d.own.Status.Living() {
			t.Errorf("it calls itself %v", to.d.own.Status)
		}
	})
}

// A recorded packet is worth nothing: neither one of this run of the sender, nor
// one of an earlier run after it has died.
func TestReplay(t *testing.T) {
	w := settled(t, 1, 3)
	a, b := w.nodes[0], w.nodes[1]
	var recorded []Packet
	w.tap = func(from, to *node, p Packet) {
		if from == a && to == b {
			recorded = append(recorded, p)
		}
	}
	w.after(time.Second)
	a.stop()
	w.tap = nil
	w.must(t, time.Second, func() bool { return b.sees(a) == Dead }, "dead")
	replay := func() {
		for _, p := range recorded {
			b.d.Receive(b.clock(), p)
		}
	}
	replay()
	w.after(100 * ms)
	if got := b.sees(a); got != Dead {
		t.Errorf("after a replay it is %v", got)
	}
	a.start()
	w.must(t, 3*time.Second, w.all(a, HoldDown), "back")
	a.stop()
	w.must(t, time.Second, w.all(a, Dead), "dead again")
	for range 20 {
		replay()
		w.after(50 * ms)
		if got := b.sees(a); got != Dead {
			t.Fatalf("after a replay of an earlier run it is %v", got)
		}
	}
}
