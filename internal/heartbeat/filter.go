package heartbeat

import (
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// dropPacket drops a packet.
var dropPacket = bpf.RetConstant{Val: 0}

// load loads a field.
func load(offset uint32, size int) bpf.Instruction {
	return bpf.LoadAbsolute{
		Off:  offset,
		Size: size,
	}
}

// skipIfNot skips so many instructions if the field that was loaded has another value.
func skipIfNot(value uint32, skip uint8) bpf.Instruction {
	return bpf.JumpIf{
		Cond:     bpf.JumpNotEqual,
		Val:      value,
		SkipTrue: skip,
	}
}

// prefixFilter returns a socket filter that passes packets with the prefix of one of the seals at an offset. A sender
// with the prefix has seen a packet of a peer, and could also forge the peer's address: addresses would tell no more.
func prefixFilter(seals []*rt.Seal, offset uint32) (program []bpf.Instruction) {
	for _, s := range seals {
		high := uint32(s.Prefix >> 32)
		low := uint32(s.Prefix)
		program = append(program,
			load(offset, 4),
			skipIfNot(high, 3),
			load(offset+4, 4),
			skipIfNot(low, 1),
			bpf.RetConstant{Val: rt.Whole},
		)
	}

	return append(program, dropPacket)
}

// routineFilter returns the number of the socket for a datagram, whose prefix it skips: 1 for a routine heartbeat,
// which has neither challenge nor answer and may wait for the next interval, whatever claims it repeats; otherwise 0.
// See sockets.
var routineFilter = func() []bpf.Instruction {
	const (
		flags     = rt.PrefixLen + detect.FlagsOffset
		challenge = rt.PrefixLen + detect.ChallengeOffset
		others    = 0xff &^ detect.FlagWatch
	)
	program := []bpf.Instruction{
		load(flags, 1),
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: others},
		skipIfNot(detect.FlagHeartbeat, 9),
	}
	for i := range uint32(4) {
		toEnd := uint8(7 - 2*i)
		program = append(program,
			load(challenge+4*i, 4),
			skipIfNot(0, toEnd),
		)
	}

	return append(program, bpf.RetConstant{Val: 1}, dropPacket)
}()

// setFilter has the kernel drop datagrams without a prefix of the seals, without waking the thread. Before the first
// call it drops all datagrams.
func (s *sockets) setFilter(seals []*rt.Seal) {
	for _, b := range []*batchSocket{s.urgent, s.routine} {
		program := prefixFilter(seals, rt.UDPHeaderLen)
		err := rt.Attach(b.fd, unix.SO_ATTACH_FILTER, program)
		if err != nil {
			// Then nothing is dropped, at more cost under a flood.
			_ = unix.SetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
		}
	}
}
