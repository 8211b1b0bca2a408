package bfd

import (
	"encoding/binary"
	"slices"

	"golang.org/x/net/bpf"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

const (
	// Where the IP header has the TTL, and the source address. A choice of a socket sees a datagram from behind the UDP header on.
	ttl4, source4 = rt.NetOffset + 8, rt.NetOffset + 12
	ttl6, source6 = rt.NetOffset + 7, rt.NetOffset + 8
)

// wellFormed lets pass what is long enough and of this version.
var wellFormed = []bpf.Instruction{
	// A load beyond the end drops the datagram.
	bpf.LoadAbsolute{Off: rt.UDPHeaderLen + packetLen - 1, Size: 1},
	bpf.LoadAbsolute{Off: rt.UDPHeaderLen, Size: 1},
	bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: versionShift},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: version, SkipTrue: 1},
	bpf.RetConstant{Val: 0},
	bpf.RetConstant{Val: rt.Whole},
}

// choice finds the session of a datagram by the link that it came by, its source and its TTL, and returns the session's
// index and 1; 0 if it is no session's. Sessions with the same links share the test of these.
func choice(sessions []*session) (program []bpf.Instruction) {
	done := make([]bool, len(sessions))
	for i, first := range sessions {
		if first == nil || done[i] {
			continue
		}
		var body []bpf.Instruction
		for j, s := range sessions[i:] {
			if s != nil && slices.Equal(s.peer.Links, first.peer.Links) {
				done[i+j] = true
				body = append(body, s.origin(uint32(i+j+1))...)
			}
		}
		program = append(program, bpf.LoadExtension{Num: bpf.ExtInterfaceIndex})
		links := first.peer.Links
		for j, l := range links {
			rest := 2 * (len(links) - j - 1)
			program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(l), SkipTrue: 1}, bpf.Jump{Skip: uint32(rest + 1)})
		}
		program = append(append(program, bpf.Jump{Skip: uint32(len(body))}), body...)
	}
	return append(program, bpf.RetConstant{Val: 0})
}

// origin returns a value for what the session's neighbor sent from near enough, and goes on behind it for the rest.
func (s *session) origin(value uint32) (program []bpf.Instruction) {
	ttl, source, b := uint32(ttl4), uint32(source4), s.peer.Address.AsSlice()
	if s.peer.Address.Is6() {
		ttl, source = ttl6, source6
	}
	const word, end = 4, 3
	for i := 0; i < len(b); i += word {
		program = append(program, bpf.LoadAbsolute{Off: source + uint32(i), Size: word},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(b[i:]), SkipTrue: uint8((len(b)-i-word)/2 + end)})
	}
	return append(program,
		bpf.LoadAbsolute{Off: ttl, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: uint32(s.minTTL()), SkipTrue: 1},
		bpf.RetConstant{Val: value},
	)
}
