package heartbeat

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

const (
	// source4 is where the source address lies in the header, source6 where its last 32 bits do.
	source4 = rt.NetOffset + 12
	source6 = rt.NetOffset + 8 + 12
	// maxSources is how many sources the filter compares; a filter has 4096 instructions at most.
	maxSources = 1500
)

// filter lets pass what begins with one of the prefixes and comes from one of the
// sources, of whose IPv6 addresses only the last 32 bits are compared.
func filter(prefixes []uint64, sources []netip.Addr) []bpf.Instruction {
	var program []bpf.Instruction
	for i, p := range prefixes {
		program = append(program,
			bpf.LoadAbsolute{Off: rt.UDPHeaderLen, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(p >> 32), SkipTrue: 3},
			bpf.LoadAbsolute{Off: rt.UDPHeaderLen + 4, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(p), SkipTrue: 1},
			bpf.Jump{Skip: uint32(5*(len(prefixes)-1-i) + 1)},
		)
	}
	program = append(program, bpf.RetConstant{Val: 0})
	if len(sources) > maxSources {
		return append(program, bpf.RetConstant{Val: rt.Whole})
	}
	for i, a := range sources {
		b := a.AsSlice()
		if i == 0 && a.Is4() {
			program = append(program, bpf.LoadAbsolute{Off: source4, Size: 4})
		} else if i == 0 {
			program = append(program, bpf.LoadAbsolute{Off: source6, Size: 4})
		}
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(b[len(b)-4:]), SkipTrue: 1},
			bpf.RetConstant{Val: rt.Whole},
		)
	}
	return append(program, bpf.RetConstant{Val: 0})
}

// choice is the number of the socket for a datagram, whose prefix it skips: 1 for a heartbeat that is nothing else, has neither
// challenge nor answer and may wait for the next interval, whatever claims it repeats; otherwise 0. See socket.
var choice = func() []bpf.Instruction {
	const flags, challenge = rt.PrefixLen + 1, rt.PrefixLen + 4 + 4*8
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: flags, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xff &^ flagWatch},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: flagHeartbeat, SkipTrue: 9},
	}
	for i := range uint32(4) {
		program = append(program, bpf.LoadAbsolute{Off: challenge + 4*i, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: uint8(7 - 2*i)})
	}
	return append(program, bpf.RetConstant{Val: 1}, bpf.RetConstant{Val: 0})
}()

// accept makes the kernel drop, without waking the thread, what cannot be a peer's. After
// an error nothing is dropped.
func accept(fd int, prefixes []uint64, sources []netip.Addr) error {
	err := rt.Attach(fd, unix.SO_ATTACH_FILTER, filter(prefixes, sources))
	if err != nil {
		// The one before does not know all peers.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) // fails if there is none
	}
	return err
}
