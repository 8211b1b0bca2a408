package layer2

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/mdlayher/arp"
	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv6"
)

// The kernel filters each ARP packet and each IPv6 packet of a link, and wakes us
// only for packets about our addresses: a flood of questions for other addresses must not
// cost the node a core. Classic BPF has no maps, so the addresses become ranges, and
// a program can have only a few. Therefore gaps between nearby addresses pass too; the
// reader drops those frames.
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

// cover returns at most n spans that contain all the values, which are sorted, and as few others as possible.
func cover(values []uint32, n int) []span {
	if len(values) == 0 {
		return nil
	}
	// Keep the widest gaps.
	var gaps []int
	for i := 1; i < len(values); i++ {
		if values[i]-values[i-1] > 1 {
			gaps = append(gaps, i)
		}
	}
	if len(gaps) > n-1 {
		slices.SortFunc(gaps, func(i, j int) int { return cmp.Compare(values[j]-values[j-1], values[i]-values[i-1]) })
		gaps = gaps[:n-1]
		slices.Sort(gaps)
	}
	var out []span
	start := 0
	for _, i := range append(gaps, len(values)) {
		out = append(out, span{values[start], values[i-1]})
		start = i
	}
	return out
}

// passIn returns a program that passes the frame if the loaded word is in one of
// the spans, and otherwise continues after its end.
func passIn(spans []span) []bpf.Instruction {
	// The distances of jumps to the end are known only now.
	const toEnd = ^uint32(0)
	var search func(spans []span) []bpf.Instruction
	search = func(spans []span) []bpf.Instruction {
		if len(spans) == 1 {
			return []bpf.Instruction{
				bpf.JumpIf{Cond: bpf.JumpLessThan, Val: spans[0].from, SkipTrue: 2},
				bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: spans[0].to, SkipTrue: 1},
				pass,
				bpf.Jump{Skip: toEnd},
			}
		}
		lower, upper := search(spans[:len(spans)/2]), search(spans[len(spans)/2:])
		middle := bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: spans[len(spans)/2].from, SkipTrue: uint8(len(lower))}
		return slices.Concat([]bpf.Instruction{middle}, lower, upper)
	}
	if len(spans) == 0 {
		return nil
	}
	program := search(spans)
	for i, in := range program {
		if in == (bpf.Jump{Skip: toEnd}) {
			program[i] = bpf.Jump{Skip: uint32(len(program) - i - 1)}
		}
	}
	return program
}

// arpFilter passes packets that ask for one of the addresses or claim one.
func arpFilter(addrs []netip.Addr) []bpf.Instruction {
	spans := passAny(addrs)
	return toUs(slices.Concat(
		[]bpf.Instruction{bpf.LoadAbsolute{Off: ethernetLen + offTargetIP, Size: 4}}, spans,
		[]bpf.Instruction{bpf.LoadAbsolute{Off: ethernetLen + offSenderIP, Size: 4}}, spans,
	)...)
}

// passAny passes the frame if the loaded word is one of the IPv4 addresses.
func passAny(addrs []netip.Addr) []bpf.Instruction {
	values := make([]uint32, len(addrs))
	for i, a := range addrs {
		b := a.As4()
		values[i] = binary.BigEndian.Uint32(b[:])
	}
	return passIn(cover(values, mostRanges))
}

// ndpFilter passes Neighbor Solicitations and Advertisements for the addresses.
// In practice they have no extension header, and a message with a Fragment header
// must be dropped anyway (RFC 6980 section 5).
func ndpFilter(addrs []netip.Addr) []bpf.Instruction {
	return toUs(slices.Concat(icmpv6(), []bpf.Instruction{
		bpf.LoadAbsolute{Off: offICMP, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(ipv6.ICMPTypeNeighborSolicitation), SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(ipv6.ICMPTypeNeighborAdvertisement), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}, targets(addrs, offICMP+offTarget))...)
}

// offICMP is where an ICMPv6 message begins in a frame, without extension headers.
const offICMP = ethernetLen + ipv6Len

// icmpv6 drops everything but ICMPv6, which continues.
func icmpv6() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: ethernetLen + 6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocolICMPv6, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
}

// arpAnswers passes replies to this machine only, ndpAnswers solicited advertisements.
// They are few: only questions of this node's kernel and of ours cause them.
func arpAnswers() []bpf.Instruction {
	return toUs(slices.Concat([]bpf.Instruction{
		bpf.LoadAbsolute{Off: ethernetLen + offOperation, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(arp.OperationReply), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}, alone())...)
}

func ndpAnswers() []bpf.Instruction {
	return toUs(slices.Concat(icmpv6(), []bpf.Instruction{
		bpf.LoadAbsolute{Off: offICMP, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(ipv6.ICMPTypeNeighborAdvertisement), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: offICMP + offFlags, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: flagSolicited, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}, alone())...)
}

// arpHeard passes gratuitous requests, not the replies between them, and ndpHeard unsolicited advertisements:
// announcements to all neighbours. Both pass questions for the addresses, too.
func arpHeard(addrs []netip.Addr) []bpf.Instruction {
	return toUs(slices.Concat([]bpf.Instruction{
		bpf.LoadAbsolute{Off: ethernetLen + offOperation, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(arp.OperationRequest), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: ethernetLen + offTargetIP, Size: 4},
	}, passAny(addrs), []bpf.Instruction{
		bpf.TAX{},
		bpf.LoadAbsolute{Off: ethernetLen + offSenderIP, Size: 4},
		bpf.JumpIfX{Cond: bpf.JumpEqual, SkipFalse: 1},
		pass,
	})...)
}

func ndpHeard(addrs []netip.Addr) []bpf.Instruction {
	questions := append(targets(addrs, offICMP+offTarget), bpf.RetConstant{Val: 0})
	return toUs(slices.Concat(icmpv6(), []bpf.Instruction{
		bpf.LoadAbsolute{Off: offICMP, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(ipv6.ICMPTypeNeighborSolicitation), SkipTrue: 1},
		bpf.Jump{Skip: uint32(len(questions))},
	}, questions, []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(ipv6.ICMPTypeNeighborAdvertisement), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: offICMP + offFlags, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: flagSolicited, SkipTrue: 1},
		pass,
	})...)
}

// alone passes unicast frames (IEEE 802: the lowest bit of the first octet marks a group).
func alone() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offDestination, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 1, SkipTrue: 1},
		pass,
	}
}

// targets passes frames with one of the addresses at an offset.
func targets(addrs []netip.Addr, off uint32) []bpf.Instruction {
	groups := map[[12]byte][]uint32{}
	for _, a := range addrs {
		b := a.As16()
		groups[[12]byte(b[:])] = append(groups[[12]byte(b[:])], binary.BigEndian.Uint32(b[12:]))
	}
	if len(groups) > mostGroups {
		return []bpf.Instruction{pass}
	}
	var program []bpf.Instruction
	for network, values := range groups {
		low := passIn(cover(values, mostRanges/len(groups)))
		block := slices.Concat([]bpf.Instruction{bpf.LoadAbsolute{Off: off + 12, Size: 4}}, low)
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
