package layer2

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Answer is what the wire says to the request for a TCP connection.
type Answer string

// The answers. A network that drops the request and one that loses it look alike.
const (
	Open     Answer = "is open"
	Refused  Answer = "refuses connections"
	Rejected Answer = "is rejected by ICMP: no endpoint, or a firewall"
	Silent   Answer = "does not answer: a filter drops it, or nothing is there"
)

// Flags of TCP, and the length of its header without options (RFC 9293 section 3.1).
const (
	flagSYN, flagRST, flagACK = 1 << 1, 1 << 2, 1 << 4
	tcpLen                    = 20
)

// Knock asks a machine on a link for a connection to a TCP port, three times within this time, and gives it up at once.
// It makes the frames itself: what the kernel sends to the address of a Service this node's own kube-proxy catches
// before the wire. So no connection of this node can have the same ports there. It returns an error if it cannot ask.
func (r *Responder) Knock(
	ctx context.Context,
	l lb.Interface,
	mac lb.MAC,
	to netip.AddrPort,
	within time.Duration,
) (Answer, error) {
	i := slices.IndexFunc(l.Prefixes, func(p netip.Prefix) bool {
		return p.Contains(to.Addr()) &&
			p.Addr() != to.Addr()
	})
	if i < 0 {
		return "", fmt.Errorf("ask on link %s: it has no address in the subnet of %s", l.Name, to.Addr())
	}

	k := knock{
		l,
		mac,
		netip.AddrPortFrom(l.Prefixes[i].Addr(), uint16(1<<15+rand.N(1<<15))),
		to,
		unix.ETH_P_IP,
		unix.IPPROTO_ICMP,
		23,
		20,
	}
	if to.Addr().Is6() {
		k.etherType, k.icmp, k.offProtocol, k.ipLen = unix.ETH_P_IPV6, unix.IPPROTO_ICMPV6, 20, ipv6.HeaderLen
	}

	t, err := openTap(l, protocol{name: "TCP", etherType: k.etherType}, k.replies())
	defer t.close()
	if err != nil {
		return "", fmt.Errorf("ask on link %s: %w", l.Name, err)
	}

	answer, sequence := Silent, rand.Uint32()
	err = t.ask(ctx, k.segment(sequence, flagSYN), within, func(frame []byte) (enough bool) {
		heard := k.parse(frame)
		if heard == Open {
			// The kernel sends another, unless a firewall takes the answer from it.
			_ = t.send(k.segment(sequence+1, flagRST))
		}

		if heard != "" {
			answer = heard
		}

		return heard != ""
	})

	return answer, err
}

// WhoHas asks all machines on a link for an address, three times within this time, and returns the MACs that they
// answer with: of a conflict both, where a client sees one. It changes nothing and shares nothing with ports, as Ask.
// It returns an error if it cannot ask.
func (r *Responder) WhoHas(
	ctx context.Context,
	l lb.Interface,
	addr netip.Addr,
	within time.Duration,
) (map[lb.MAC]bool, error) {
	proto, macs := r.protocols[number(lb.FamilyOf(addr))], map[lb.MAC]bool{}
	t, err := openTap(l, proto, proto.answers)
	defer t.close()
	if err != nil {
		return nil, fmt.Errorf("ask on link %s: %w", l.Name, err)
	}

	return macs, t.ask(ctx, proto.question(&l, lb.MAC{}, addr), within, func(frame []byte) (enough bool) {
		if m, out := proto.parse(frame, l.MAC); out == answered && m.reply && m.claimed == addr {
			macs[m.mac] = true
		}

		return false
	})
}

// ask sends a frame three times within this time, and calls handle with each one that arrives, until it has heard
// enough.
func (e *tap) ask(
	ctx context.Context,
	frame []byte,
	within time.Duration,
	handle func(frame []byte) (enough bool),
) error {
	for range questionTimes {
		if frame == nil || !e.send(frame) {
			return fmt.Errorf("ask on link %s: it is down, or has no address of the family", e.link.Name)
		}

		for end := time.Now().Add(within / questionTimes); ctx.Err() == nil && time.Now().Before(end); {
			await([]*tap{e}, time.Until(end))
			enough := false
			if e.receive(func(frame []byte) { enough = enough || handle(frame) }); enough {
				return nil
			}
		}
	}

	return nil
}

// knock is one request for a connection.
type knock struct {
	link               lb.Interface
	mac                lb.MAC
	from, to           netip.AddrPort
	etherType          uint16
	icmp               byte
	offProtocol, ipLen int
}

// ports are the two ports as a header has them.
func ports(from, to netip.AddrPort) uint32 { return uint32(from.Port())<<16 | uint32(to.Port()) }

// segment makes the frame of a TCP segment without data.
func (k *knock) segment(sequence uint32, flags byte) []byte {
	tcp := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, ports(k.from, k.to)), sequence)
	tcp = append(tcp, 0, 0, 0, 0, tcpLen/4<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	addrs := slices.Concat(k.from.Addr().AsSlice(), k.to.Addr().AsSlice())
	binary.BigEndian.PutUint16(tcp[16:], sum(tcpLen+unix.IPPROTO_TCP, addrs, tcp))
	ip := append([]byte{6 << 4, 0, 0, 0, 0, tcpLen, unix.IPPROTO_TCP, 64}, addrs...)
	if k.etherType == unix.ETH_P_IP {
		ip = append([]byte{4<<4 | 5, 0, 0, 20 + tcpLen, 0, 0, 1 << 6, 0, 64, unix.IPPROTO_TCP, 0, 0}, addrs...)
		binary.BigEndian.PutUint16(ip[10:], sum(0, ip))
	}

	return slices.Concat(ethernetHeader(k.mac, k.link.MAC, k.etherType), ip, tcp)
}

// replies passes segments to the port that asks from the one that is asked, and ICMP.
func (k *knock) replies() []bpf.Instruction {
	return toUs(
		bpf.LoadAbsolute{Off: uint32(k.offProtocol), Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(k.icmp), SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_TCP, SkipTrue: 2},
		bpf.LoadAbsolute{Off: uint32(ethernetLen + k.ipLen), Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: ports(k.to, k.from), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: maxFrame},
	)
}

// parse reads an answer; "" of other frames. An ICMP error repeats the header of what it is about (RFC 792, RFC 4443
// section 3.1).
func (k *knock) parse(frame []byte) Answer {
	const icmpLen, unreachable4, unreachable6 = 8, 3, 1
	size, body := k.to.Addr().BitLen()/8, ethernetLen+k.ipLen
	repeated := body + icmpLen + k.ipLen
	if len(frame) < body+tcpLen {
		return ""
	}

	about := func(ip int, addr []byte, both uint32) bool { // of the header that ends at ip
		return slices.Equal(addr, k.to.Addr().AsSlice()) && binary.BigEndian.Uint32(frame[ip:]) == both
	}

	switch flags := frame[body+13]; {
	case frame[k.offProtocol] == k.icmp:
		unreachable := frame[body] == map[byte]byte{unix.IPPROTO_ICMP: unreachable4, unix.IPPROTO_ICMPV6: unreachable6}[k.icmp]
		if unreachable &&
			len(frame) >= repeated+4 &&
			about(repeated, frame[repeated-size:repeated], ports(k.from, k.to)) {
			return Rejected
		}
	case !about(body, frame[body-2*size:body-size], ports(k.to, k.from)):
	case flags&flagRST != 0:
		return Refused
	case flags&(flagSYN|flagACK) == flagSYN|flagACK:
		return Open
	}

	return ""
}
