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

// The kernel filters each ARP packet and each IPv6 packet of a link, and wakes this process only for packets about
// addresses of the nodes: a flood of questions for other addresses must not cost the node a core. Classic BPF has no
// maps, so the addresses become ranges, and a program can have only a few. Therefore gaps between nearby addresses pass
// too, and a few addresses after a long range, so that most new addresses need no other program. The reader drops the
// frames about them.
const (
	// maxRanges keeps a program within net.core.optmem_max of any kernel (20 KiB, which
	// must hold both programs while one replaces the other).
	maxRanges = 32
	// maxNetworks bounds the IPv6 networks of 96 bits. With more of them every solicitation
	// passes; a link receives only the solicitations of its groups anyway.
	maxNetworks = 16
)

// pass lets a frame through.
var pass = bpf.RetConstant{Val: maxFrame}

// suffixRange is an inclusive range of the last 32 bits of addresses.
type suffixRange struct{ from, to uint32 }

// addressCover has the addresses of a family and some more: ranges of their last 32 bits, by the bits before these.
type addressCover map[[12]byte][]suffixRange

// splitAddress returns the first 96 bits of an address, and the last 32.
func splitAddress(a netip.Addr) (network [12]byte, value uint32) {
	b := a.As16()
	return [12]byte(b[:]), binary.BigEndian.Uint32(b[12:])
}

// coversOf returns the covers of addresses by protocol. The echo has none: it may be about any address.
func coversOf(addrs ...iter.Seq[netip.Addr]) (out [protocolCount]addressCover) {
	values := [familyCount]map[[12]byte][]uint32{{}, {}}
	for _, some := range addrs {
		for a := range some {
			network, value := splitAddress(a)
			ofFamily := values[familyIndex(lb.FamilyOf(a))]
			ofFamily[network] = append(ofFamily[network], value)
		}
	}

	for n, networks := range values {
		out[n] = addressCover{}
		for network, values := range networks {
			slices.Sort(values)
			out[n][network] = rangesOf(values, max(1, maxRanges/len(networks)))
		}
	}

	return out
}

// has reports whether an address is covered.
func (c addressCover) has(a netip.Addr) bool {
	if len(c) > maxNetworks {
		return true
	}

	network, value := splitAddress(a)
	return slices.ContainsFunc(c[network], func(s suffixRange) bool {
		return s.from <= value && value <= s.to
	})
}

// rangesOf returns at most n ranges that contain all the values, which are sorted. Values share a range if they are no
// farther apart than some distance, which is at most twice the shortest distance for which n ranges suffice.
func rangesOf(values []uint32, n int) []suffixRange {
	for distance := uint64(1); ; distance *= 2 {
		var out []suffixRange
		for _, v := range values {
			last := len(out) - 1
			if last >= 0 && uint64(v-out[last].to) <= distance {
				out[last].to = v
			} else {
				out = append(out, suffixRange{v, v})
			}
		}

		if len(out) > n {
			continue
		}

		for i, s := range out {
			slack := (s.to - s.from) / 16
			out[i].to += min(slack, math.MaxUint32-s.to)
		}

		return out
	}
}

// passRanges returns a program that passes the frame if the loaded word is in one of
// the ranges, and otherwise continues after its end.
func passRanges(ranges []suffixRange) (program []bpf.Instruction) {
	for _, s := range ranges {
		program = append(program,
			skipIf(bpf.JumpLessThan, s.from, 2),
			skipIf(bpf.JumpGreaterThan, s.to, 1),
			pass)
	}

	return program
}

// skipIf skips the next n instructions if the loaded value compares so.
func skipIf(condition bpf.JumpTest, value uint32, n uint8) bpf.JumpIf {
	return bpf.JumpIf{
		Cond:     condition,
		Val:      value,
		SkipTrue: n,
	}
}

// requireField drops frames whose field at an offset has another value.
func requireField(off uint32, size int, value uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: off, Size: size},
		skipIf(bpf.JumpEqual, value, 1),
		bpf.RetConstant{Val: 0},
	}
}

// arpFilter passes packets that ask for one of the addresses or claim one.
func arpFilter(addrs addressCover) []bpf.Instruction {
	var pass []bpf.Instruction
	for _, ranges := range addrs { // IPv4 is one network
		pass = passRanges(ranges)
	}

	return toUs(slices.Concat(
		[]bpf.Instruction{bpf.LoadAbsolute{Off: ethernetLen + offTargetIP, Size: 4}},
		pass,
		[]bpf.Instruction{bpf.LoadAbsolute{Off: ethernetLen + offSenderIP, Size: 4}},
		pass,
	)...)
}

// ndpFilter passes Neighbor Solicitations and Advertisements for the addresses.
// In practice they have no extension header, and a message with a Fragment header
// must be dropped anyway (RFC 6980 section 5).
func ndpFilter(addrs addressCover) []bpf.Instruction {
	return toUs(slices.Concat(requireICMPv6(), []bpf.Instruction{
		skipIf(bpf.JumpEqual, uint32(ipv6.ICMPTypeNeighborSolicitation), 2),
		skipIf(bpf.JumpEqual, uint32(ipv6.ICMPTypeNeighborAdvertisement), 1),
		bpf.RetConstant{Val: 0},
	}, passTargets(addrs))...)
}

// offICMP is the offset of an ICMPv6 message in a frame without extension headers.
const offICMP = ethernetLen + ipv6.HeaderLen

// requireICMPv6 drops everything but ICMPv6, and loads the type of its message.
func requireICMPv6() []bpf.Instruction {
	requireProtocol := requireField(ethernetLen+6, 1, unix.IPPROTO_ICMPV6)
	return append(requireProtocol, bpf.LoadAbsolute{Off: offICMP, Size: 1})
}

// ndpAnswers passes advertisements to this machine only. They are few, like ARP to it: usually answers to questions of
// this node's kernel and of the speaker.
func ndpAnswers() []bpf.Instruction {
	requireAdvertisement := requireField(offICMP, 1, uint32(ipv6.ICMPTypeNeighborAdvertisement))
	return toUs(slices.Concat(requireICMPv6(), requireAdvertisement, passUnicast())...)
}

// passUnicast passes unicast frames (IEEE 802: the lowest bit of the first octet marks a group).
func passUnicast() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offDestination, Size: 1},
		skipIf(bpf.JumpBitsSet, 1, 1),
		pass,
	}
}

// passTargets passes messages of Neighbor Discovery about one of the addresses.
func passTargets(addrs addressCover) []bpf.Instruction {
	const off = offICMP + offTarget
	if len(addrs) > maxNetworks {
		return []bpf.Instruction{pass}
	}

	var program []bpf.Instruction
	for network, ranges := range addrs {
		block := slices.Concat(
			[]bpf.Instruction{bpf.LoadAbsolute{Off: off + 12, Size: 4}},
			passRanges(ranges),
		)
		for word := 8; word >= 0; word -= 4 {
			block = slices.Concat([]bpf.Instruction{
				bpf.LoadAbsolute{Off: off + uint32(word), Size: 4},
				skipIf(bpf.JumpEqual, binary.BigEndian.Uint32(network[word:]), 1),
				bpf.Jump{Skip: uint32(len(block))},
			}, block)
		}

		program = append(program, block...)
	}

	return program
}
