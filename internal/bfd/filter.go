package bfd

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	// A socket filter sees a datagram from the UDP header on; what lies at netOffset and beyond is the IP header
	// (linux/filter.h, SKF_NET_OFF).
	udpHeaderLen = 8
	netOffset    = 0xfff00000
	// Where the IP header has the TTL, and the source address: all of IPv4's, the last 32 bits of IPv6's.
	ttl4, source4 = netOffset + 8, netOffset + 12
	ttl6, source6 = netOffset + 7, netOffset + 8 + 12
	whole         = 1 << 16
)

// filter lets pass what is long enough, is of this version, came over one hop if it must, and is from one of the sources.
// Nothing else wakes the thread.
func filter(is6, multiHop bool, sources []netip.Addr) []bpf.Instruction {
	ttl, source := uint32(ttl4), uint32(source4)
	if is6 {
		ttl, source = ttl6, source6
	}
	drop := bpf.RetConstant{Val: 0}
	program := []bpf.Instruction{
		// A load beyond the end drops the datagram.
		bpf.LoadAbsolute{Off: udpHeaderLen + packetLen - 1, Size: 1},
		bpf.LoadAbsolute{Off: udpHeaderLen, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: versionShift},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: version, SkipTrue: 1},
		drop,
	}
	if !multiHop {
		program = append(program,
			bpf.LoadAbsolute{Off: ttl, Size: 1},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: singleHopTTL, SkipTrue: 1},
			drop,
		)
	}
	program = append(program, bpf.LoadAbsolute{Off: source, Size: 4})
	for _, a := range sources {
		b := a.AsSlice()
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(b[len(b)-4:]), SkipTrue: 1},
			bpf.RetConstant{Val: whole},
		)
	}
	return append(program, drop)
}

// attach makes the kernel drop what the program does not let pass.
func attach(fd int, program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("assemble filter: %w", err)
	}
	instructions := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		instructions[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{
		Len: uint16(len(instructions)), Filter: &instructions[0],
	})
	if err != nil {
		return fmt.Errorf("attach filter: %w", err)
	}
	return nil
}
