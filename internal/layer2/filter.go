package layer2

import (
	"encoding/binary"
	"iter"
	"math"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// The kernel filters each ARP packet and each IPv6 packet of a link, and wakes us only for packets about addresses of
// this and other nodes: a flood of questions for others must not cost the node a core. Classic BPF has no maps, so the
// addresses become ranges, and a program can have only a few. Therefore gaps between nearby addresses pass too, and a
// few addresses after a long range, so that most of those that come need no other program; the reader drops those
// frames.
const (
	// mostRanges keeps a program within net.core.optmem_max of any kernel (20 KiB, which
	// must hold both programs while one replaces the other).
	mostRanges = 32
	// mostGroups bounds the IPv6 networks of 96 bits. With more of them every solicitation
	// passes; a link receives only those of its groups anyway.
	mostGroups = 16
)

// pass lets a frame through.
var pass = bpf.RetConstant{Val: maxFrame}

// span is an inclusive range of the last 32 bits of addresses.
type span struct{ from, to uint32 }

// cover has the addresses of a family and some more: spans of their last 32 bits, by the bits before these.
type cover map[[12]byte][]span

func split(a netip.Addr) (network [12]byte, value uint32) {
	b := a.As16()
	return [12]byte(b[:]), binary.BigEndian.Uint32(b[12:])
}

// coversOf returns the covers of addresses by protocol: an echo may be about any.
func coversOf(addrs ...iter.Seq[netip.Addr]) (out [kinds]cover) {
	values := [families]map[[12]byte][]uint32{{}, {}}
	for _, some := range addrs {
		for a := range some {
			network, value := split(a)
			of := values[number(lb.FamilyOf(a))]
			of[network] = append(of[network], value)
		}
	}

	for n, networks := range values {
		out[n] = cover{}
		for network, values := range networks {
			slices.Sort(values)
			out[n][network] = spansOf(values, max(1, mostRanges/len(networks)))
		}
	}

	return out
}

// has reports whether an address is covered.
func (c cover) has(a netip.Addr) bool {
	network, value := split(a)
	return len(c) > mostGroups ||
		slices.ContainsFunc(c[network], func(s span) bool {
			return s.from <= value &&
				value <= s.to
		})
}

// spansOf returns at most n spans that contain all the values, which are sorted. Values share a span if they are no
// farther apart than some distance: the shortest one by which n spans suffice, but for a factor of two.
func spansOf(values []uint32, n int) []span {
	for distance := uint64(1); ; distance *= 2 {
		var out []span
		for _, v := range values {
			if last := len(out) - 1; last >= 0 && uint64(v-out[last].to) <= distance {
				out[last].to = v
			} else {
				out = append(out, span{v, v})
			}
		}

		if len(out) > n {
			continue
		}

		for i, s := range out {
			out[i].to += min((s.to-s.from)/16, math.MaxUint32-s.to)
		}

		return out
	}
}

// passIn returns a program that passes the frame if the loaded word is in one of
// the spans, and otherwise continues after its end.
func passIn(spans []span) (program []bpf.Instruction) {
	for _, s := range spans {
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpLessThan, Val: s.from, SkipTrue: 2},
			bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: s.to, SkipTrue: 1},
			pass)
	}

	return program
}

// only drops frames whose field at an offset has another value.
func only(off uint32, size int, value uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: off, Size: size},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
}

// arpFilter passes packets that ask for one of the addresses or claim one.
func arpFilter(addrs cover) []bpf.Instruction {
	var spans []bpf.Instruction
	for _, s := range addrs { // IPv4 is one network
		spans = passIn(s)
	}

	return toUs(slices.Concat(
		[]bpf.Instruction{bpf.LoadAbsolute{Off: ethernetLen + offTargetIP, Size: 4}}, spans,
		[]bpf.Instruction{bpf.LoadAbsolute{Off: ethernetLen + offSenderIP, Size: 4}}, spans,
	)...)
}

// ndpFilter passes Neighbor Solicitations and Advertisements for the addresses.
// In practice they have no extension header, and a message with a Fragment header
// must be dropped anyway (RFC 6980 section 5).
func ndpFilter(addrs cover) []bpf.Instruction {
	return toUs(slices.Concat(icmpv6(), []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(ipv6.ICMPTypeNeighborSolicitation), SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(ipv6.ICMPTypeNeighborAdvertisement), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}, targets(addrs))...)
}

// offICMP is where an ICMPv6 message begins in a frame, without extension headers.
const offICMP = ethernetLen + ipv6.HeaderLen

// icmpv6 drops everything but ICMPv6, and loads the type of its message.
func icmpv6() []bpf.Instruction {
	return append(only(ethernetLen+6, 1, unix.IPPROTO_ICMPV6), bpf.LoadAbsolute{Off: offICMP, Size: 1})
}

// ndpAnswers passes advertisements to this machine only. They are few, as all ARP to it is: mostly answers to questions
// of this node's kernel and of ours.
func ndpAnswers() []bpf.Instruction {
	return toUs(slices.Concat(icmpv6(), only(offICMP, 1, uint32(ipv6.ICMPTypeNeighborAdvertisement)), alone())...)
}

// alone passes unicast frames (IEEE 802: the lowest bit of the first octet marks a group).
func alone() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offDestination, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 1, SkipTrue: 1},
		pass,
	}
}

// targets passes messages of Neighbor Discovery about one of the addresses.
func targets(addrs cover) []bpf.Instruction {
	const off = offICMP + offTarget
	if len(addrs) > mostGroups {
		return []bpf.Instruction{pass}
	}

	var program []bpf.Instruction
	for network, spans := range addrs {
		block := slices.Concat([]bpf.Instruction{bpf.LoadAbsolute{Off: off + 12, Size: 4}}, passIn(spans))
		for word := 8; word >= 0; word -= 4 {
			block = slices.Concat([]bpf.Instruction{
				bpf.LoadAbsolute{Off: off + uint32(word), Size: 4},
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(network[word:]), SkipTrue: 1},
				bpf.Jump{Skip: uint32(len(block))},
			}, block)
		}

		program = append(program, block...)
	}

	return program
}
