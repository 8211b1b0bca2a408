package heartbeat

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/net/bpf"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

var (
	hereEnd  = linkEnd{macAddress{2, 0, 0, 0, 0, 1}, 5}
	thereEnd = linkEnd{macAddress{2, 0, 0, 0, 0, 2}, 7}
)

// testFrame returns a frame from there to here.
func testFrame(key []byte) ([]byte, detect.Packet) {
	p := detect.Packet{
		From: detect.NodeIDOf("b"), To: detect.NodeIDOf("a"), Boot: 3, Seq: 4, Hold: time.Second, Heartbeat: true,
		Claims: []detect.NodeClaim{},
	}
	return sealFrame(rt.NewSeals([][]byte{key}, frameSealKind)[0], nil, thereEnd, hereEnd, &p), p
}

// A frame is for the interface that it names, and for none other with the same MAC or index, as VLANs of one port have.
func TestFrameIsForOneInterface(t *testing.T) {
	seals := rt.NewSeals([][]byte{testKey}, frameSealKind)
	frame, sent := testFrame(testKey)
	f, ok := openFrame(seals, frame, nil)
	p := f.packet
	if !ok || f.from != thereEnd || p.From != sent.From || p.To != sent.To || !p.Heartbeat || !f.isFor(hereEnd) {
		t.Errorf("%+v, %v", f, ok)
	}

	for _, other := range []linkEnd{{hereEnd.mac, 6}, {macAddress{2, 0, 0, 0, 0, 9}, hereEnd.index}, thereEnd} {
		if f.isFor(other) {
			t.Errorf("%v accepts what is for %v", other, hereEnd)
		}
	}
	if _, ok := openFrame(rt.NewSeals([][]byte{testKey}, sealKind), frame, nil); ok {
		t.Error("it counts as another kind of packet")
	}
}

// Each octet that is changed, and each that is missing, makes a frame worthless.
func TestFrameIsSealed(t *testing.T) {
	seals := rt.NewSeals([][]byte{testKey}, frameSealKind)
	frame, _ := testFrame(testKey)
	for i := range frame {
		changed := bytes.Clone(frame)
		changed[i] ^= 1
		if _, ok := openFrame(seals, changed, nil); ok {
			t.Errorf("octet %d may be changed", i)
		}
		if _, ok := openFrame(seals, frame[:i], nil); ok {
			t.Errorf("a frame of %d octets is accepted", i)
		}
	}
}

// A hello is for all interfaces, and only a hello is: no heartbeat counts that went to a group.
func TestHelloIsForAll(t *testing.T) {
	seals := rt.NewSeals([][]byte{testKey}, frameSealKind)
	for _, tt := range []struct {
		to             detect.NodeID
		end            linkEnd
		isHello, isFor bool
	}{
		{0, everyEnd, true, false},
		{detect.NodeIDOf("a"), hereEnd, false, true},
		{detect.NodeIDOf("a"), everyEnd, false, false},
		{0, hereEnd, false, false},
	} {
		p := detect.Packet{From: detect.NodeIDOf("b"), To: tt.to, Hold: time.Second}
		f, ok := openFrame(seals, sealFrame(seals[0], nil, thereEnd, tt.end, &p), nil)
		if !ok || f.isHello() != tt.isHello || f.isFor(hereEnd) != tt.isFor {
			t.Errorf("a packet to %x at %v: hello %v, for here %v", tt.to, tt.end, f.isHello(), f.isFor(hereEnd))
		}
	}
}

// The kernel drops frames with another key, and echoes, which have the same EtherType.
func TestFrameFilter(t *testing.T) {
	other := []byte("another key of thirty-two octets")
	vm, err := bpf.NewVM(frameFilter(rt.NewSeals([][]byte{testKey, other}, frameSealKind)))
	must(t, err)
	passes := func(frame []byte) bool {
		n, err := vm.Run(frame)
		must(t, err)
		return n > 0
	}

	for _, key := range [][]byte{testKey, other} {
		if frame, _ := testFrame(key); !passes(frame) {
			t.Errorf("a frame with the key %s is dropped", key)
		}
	}
	stranger, _ := testFrame([]byte("a third key of thirty-two octets"))
	echo, _ := testFrame(testKey)
	echo[offVersion] = 1
	if passes(stranger) || passes(echo) || passes(make([]byte, 20)) {
		t.Error("frames of others pass")
	}
}

func FuzzFrame(f *testing.F) {
	frame, _ := testFrame(testKey)
	f.Add(frame)
	f.Add(frame[:offPacket])
	seals := rt.NewSeals([][]byte{testKey}, frameSealKind)
	random := rand.New(rand.NewPCG(1, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		openFrame(seals, b, nil)
		if len(b) < offPacket+rt.TagLen {
			return
		}
		// With a valid tag too, whatever is in it.
		b[offVersion] = frameVersion
		copy(b[offPrefix:], frame[offPrefix:offVersion])
		b = seals[0].Close(b[:len(b)-rt.TagLen])
		openFrame(seals, b, make([]detect.NodeClaim, random.IntN(3)))
	})
}
