package heartbeat

import (
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// prefixFilter returns a socket filter that passes datagrams with the prefix of one of the seals. A sender with the
// prefix has seen a packet of a peer, and could also forge the peer's address: addresses would tell no more.
func prefixFilter(seals []*rt.Seal) (program []bpf.Instruction) {
	for _, s := range seals {
		program = append(program,
			bpf.LoadAbsolute{Off: rt.UDPHeaderLen, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(s.Prefix >> 32), SkipTrue: 3},
			bpf.LoadAbsolute{Off: rt.UDPHeaderLen + 4, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(s.Prefix), SkipTrue: 1},
			bpf.RetConstant{Val: rt.Whole},
		)
	}

	return append(program, bpf.RetConstant{Val: 0})
}

// routineFilter returns the number of the socket for a datagram, whose prefix it skips: 1 for a routine heartbeat,
// which has neither challenge nor answer and may wait for the next interval, whatever claims it repeats; otherwise 0.
// See sockets.
var routineFilter = func() []bpf.Instruction {
	const flags, challenge = rt.PrefixLen + detect.FlagsOffset, rt.PrefixLen + detect.ChallengeOffset
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: flags, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xff &^ detect.FlagWatch},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: detect.FlagHeartbeat, SkipTrue: 9},
	}
	for i := range uint32(4) {
		program = append(program,
			bpf.LoadAbsolute{Off: challenge + 4*i, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: uint8(7 - 2*i)},
		)
	}

	return append(program, bpf.RetConstant{Val: 1}, bpf.RetConstant{Val: 0})
}()

// setFilter has the kernel drop datagrams without a prefix of the seals, without waking the thread. Before the first
// call it drops all datagrams.
func (s *sockets) setFilter(seals []*rt.Seal) {
	for _, b := range []*batchSocket{s.urgent, s.routine} {
		if rt.Attach(b.fd, unix.SO_ATTACH_FILTER, prefixFilter(seals)) != nil {
			// Then nothing is dropped, at more cost under a flood.
			_ = unix.SetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
		}
	}
}
