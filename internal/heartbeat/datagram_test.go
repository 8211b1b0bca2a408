package heartbeat

import (
	"bytes"
	"encoding/hex"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

func testPacket(claims int) detect.Packet {
	p := detect.Packet{From: 1, To: 2, Boot: 3, Seq: 4, Challenge: 5, Answer: 6, Hold: 150 * ms, Watch: true, Ping: true}
	for i := range claims {
		p.Claims = append(p.Claims, detect.NodeClaim{
			About: detect.NodeID(i), Status: detect.Status(i%int(detect.Left) + 1), Deaths: 3, Incarnation: uint32(i),
		})
	}
	return p
}

// TestLongestDatagram: every packet fits into an IPv6 packet that each link carries.
func TestLongestDatagram(t *testing.T) {
	longest := testPacket((detect.MaxPacketLen - len(new(detect.Packet).Append(nil))) / 14)
	n := len(sealPacket(mustSeal(t, 1), nil, &longest))
	if n != maxDatagram || n > 1232 { // RFC 8200 section 5: 1280 less the headers
		t.Errorf("the longest datagram has %d octets, maxDatagram is %d", n, maxDatagram)
	}
}

func mustSeal(t testing.TB, first byte) *rt.Seal {
	t.Helper()
	return rt.NewSeals([][]byte{bytes.Repeat([]byte{first}, 32)}, sealKind)[0]
}

// TestGoldenDatagram: speakers of other versions open what this one closes. Commit 8699eb71 wrote the octets.
func TestGoldenDatagram(t *testing.T) {
	const octets = "a3aa909826000b09011a2710000000000000000100000000000000020000000000000003000000000000000400000000" +
		"00000000000000000000000000000a01000000000000000100fffffff001000000000000010201fffffff10100000000" +
		"0000020302fffffff201000000000000030403fffffff301000000000000040504fffffff401000000000000051005ff" +
		"fffff501000000000000061106fffffff601000000000000071207fffffff701000000000000081308fffffff8010000" +
		"00000000091409fffffff9dba2509964bf35c768884665ea881644"
	want, err := hex.DecodeString(octets)
	must(t, err)
	seal := mustSeal(t, 1)
	packet, ok := rt.Open([]*rt.Seal{seal}, bytes.Clone(want), 0)
	if !ok {
		t.Fatal("it does not open")
	}
	p, ok := detect.ParsePacket(packet[rt.PrefixLen:], nil)
	if !ok || len(p.Claims) != 10 || p.Seq != 4 {
		t.Fatalf("it has %+v, %v", p, ok)
	}
	if got := sealPacket(seal, nil, &p); !bytes.Equal(got, want) {
		t.Errorf("it is closed as\n%x, want\n%x", got, want)
	}
}

// What was changed anywhere, or closed with another key, does not open.
//
// Trap: a key of which not all counts, so that another one opens too (MetalLB #3102).
func TestSeal(t *testing.T) {
	p := testPacket(2)
	s := mustSeal(t, 1)
	b := sealPacket(s, nil, &p)
	opened := func(s *rt.Seal, b []byte) (closed []byte, ok bool) { return rt.Open([]*rt.Seal{s}, b, 0) }
	if closed, ok := opened(s, b); !ok || !bytes.Equal(closed[rt.PrefixLen:], p.Append(nil)) {
		t.Error("what was closed does not open")
	}
	for i := range b {
		b[i] ^= 1
		if _, ok := opened(s, b); ok {
			t.Errorf("changed in octet %d, it opens", i)
		}
		b[i] ^= 1
		if _, ok := opened(s, b[:i]); ok {
			t.Errorf("cut to %d octets, it opens", i)
		}
	}
	for i := range 32 {
		key := bytes.Repeat([]byte{1}, 32)
		key[i] ^= 1
		other := rt.NewSeals([][]byte{key}, sealKind)[0]
		if _, ok := opened(other, b); ok {
			t.Errorf("a key that differs in octet %d opens it", i)
		}
	}
}

// Trap: a lease whose end is another clock's time, or is noticed late (PureLB).
func TestLease(t *testing.T) {
	var l Lease
	check := func(want bool, when string) {
		t.Helper()
		if got := l.Valid(); got != want {
			t.Errorf("%s: valid is %v", when, got)
		}
	}
	check(false, "at first")
	l.renew(1, monotonic()+time.Hour)
	check(false, "without a plan")
	l.confirmed.Store(1)
	check(true, "with a plan")
	l.renew(1, monotonic())
	check(false, "late")
	l.renew(2, monotonic()+time.Hour)
	check(false, "after a lapse, with the plan of before")
	l.confirmed.Store(1)
	check(false, "an old plan confirmed")
	l.confirmed.Store(2)
	check(true, "a new plan confirmed")
}
