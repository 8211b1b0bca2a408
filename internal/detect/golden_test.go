package detect

import (
	"encoding/hex"
	"reflect"
	"testing"
)

// golden are packets as speakers of commit 8699eb71 write them, which have no package detect.
var golden = map[string]struct {
	octets string
	packet Packet
}{
	"everything but claims": {
		"016500a066570ff05a20740493ef37c61571382201020304050607081112131415161718212223242526272831323334" +
			"35363738fffe00",
		Packet{
			From: NodeIDOf("node-a"), To: NodeIDOf("node-b"), Boot: 0x0102030405060708, Seq: 0x1112131415161718,
			Challenge: 0x2122232425262728, Answer: 0x3132333435363738, Hold: 160 * ms,
			Watch: true, Heartbeat: true, Heartbeats: 0xfffe, Lost: true, HearsNone: true,
		},
	},
	"a heartbeat": {
		"010500640000000000000001000000000000000200000000000000030000000000000004000000000000000000000000" +
			"00000000000700",
		Packet{From: 1, To: 2, Boot: 3, Seq: 4, Hold: 100 * ms, Watch: true, Heartbeat: true, Heartbeats: 7},
	},
	"claims of all kinds": {
		"011a27100000000000000001000000000000000200000000000000030000000000000004000000000000000000000000" +
			"0000000000000a01000000000000000100fffffff001000000000000010201fffffff101000000000000020302ffffff" +
			"f201000000000000030403fffffff301000000000000040504fffffff401000000000000051005fffffff50100000000" +
			"0000061106fffffff601000000000000071207fffffff701000000000000081308fffffff801000000000000091409ff" +
			"fffff9",
		Packet{
			From: 1, To: 2, Boot: 3, Seq: 4, Hold: maxHold, Ping: true, Complains: true, HearsBadly: true,
			Claims: []NodeClaim{
				{0x0100000000000000, Alive, 0, 0xfffffff0},
				{0x0100000000000001, HoldDown, 1, 0xfffffff1},
				{0x0100000000000002, SpeakerDown, 2, 0xfffffff2},
				{0x0100000000000003, Dead, 3, 0xfffffff3},
				{0x0100000000000004, Left, 4, 0xfffffff4},
				{0x0100000000000005, query, 5, 0xfffffff5},
				{0x0100000000000006, replyHeard, 6, 0xfffffff6},
				{0x0100000000000007, replySilent, 7, 0xfffffff7},
				{0x0100000000000008, replyUnwatched, 8, 0xfffffff8},
				{0x0100000000000009, privateDeath, 9, 0xfffffff9},
			},
		},
	},
}

// TestGoldenPackets: speakers of other versions read and write the same octets.
func TestGoldenPackets(t *testing.T) {
	for name, g := range golden {
		want, err := hex.DecodeString(g.octets)
		must(t, err)
		if got := g.packet.Append(nil); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is written as\n%x, want\n%x", name, got, want)
		}
		got, ok := ParsePacket(want, nil)
		if len(g.packet.Claims) == 0 {
			got.Claims = nil
		}
		if !ok || !reflect.DeepEqual(got, g.packet) {
			t.Errorf("%s is read as\n%+v, %v, want\n%+v", name, got, ok, g.packet)
		}
		if again := got.Append(nil); !reflect.DeepEqual(again, want) {
			t.Errorf("%s is read and written as\n%x, want\n%x", name, again, want)
		}
	}
}
