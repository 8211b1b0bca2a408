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

// PortState is the state of a TCP port of another machine.
type PortState string

// The states. A network that drops the request and a network that loses it look alike.
const (
	PortOpen       PortState = "is open"
	PortRefuses    PortState = "refuses connections"
	PortRejected   PortState = "is rejected by ICMP: no endpoint, or a firewall"
	PortUnanswered PortState = "does not answer: a filter drops it, or nothing is there"
)

// Flags of TCP, and the length of its header without options (RFC 9293 section 3.1).
const (
	flagSYN, flagRST, flagACK = 1 << 1, 1 << 2, 1 << 4
	tcpLen                    = 20
)

// ProbePort asks a machine on a link for a connection to a TCP port, three times within the given time, and resets the
// connection at once. It returns an error if it cannot ask.
//
// It makes the frames itself: this node's own kube-proxy would redirect what the kernel sends to the address of a
// Service. So no connection of this node can have the same ports there.
func (r *Responder) ProbePort(
	ctx context.Context,
	l lb.Interface,
	mac lb.MAC,
	to netip.AddrPort,
	within time.Duration,
) (PortState, error) {
	from, err := sourceFor(l, to.Addr())
	if err != nil {
		return "", err
	}

	probe := newPortProbe(l, mac, from, to)
	tcp := protocol{name: "TCP", etherType: probe.etherType}
	t, err := openTap(l, tcp, probe.replyFilter())
	defer t.close()
	if err != nil {
		return "", fmt.Errorf("ask on link %s: %w", l.Name, err)
	}

	answer := PortUnanswered
	sequence := rand.Uint32()
	request := probe.segment(sequence, flagSYN)
	err = t.askAll(ctx, request, within, func(frame []byte) (isEnough bool) {
		got := probe.parse(frame)
		if got == "" {
			return false
		}

		if got == PortOpen {
			// The kernel sends a reset too, unless a firewall takes the answer from it.
			_ = t.send(probe.segment(sequence+1, flagRST))
		}

		answer = got
		return true
	})

	return answer, err
}

// sourceFor returns an address of a link in the subnet of another address, with a random port.
func sourceFor(l lb.Interface, to netip.Addr) (netip.AddrPort, error) {
	isSource := func(p netip.Prefix) bool { return p.Contains(to) && p.Addr() != to }
	i := slices.IndexFunc(l.Prefixes, isSource)
	if i < 0 {
		return netip.AddrPort{}, fmt.Errorf("ask on link %s: it has no address in the subnet of %s", l.Name, to)
	}

	const firstPort = 1 << 15
	port := firstPort + rand.N(firstPort)
	return netip.AddrPortFrom(l.Prefixes[i].Addr(), uint16(port)), nil
}

// WhoHas asks all machines on a link for an address, three times within the given time, and returns the MACs that they
// answer with: both MACs of a conflict, where a client sees one. It changes nothing and shares nothing with ports, like
// Ask. It returns an error if it cannot ask.
func (r *Responder) WhoHas(
	ctx context.Context,
	l lb.Interface,
	addr netip.Addr,
	within time.Duration,
) (map[lb.MAC]bool, error) {
	proto := r.protocols[familyIndex(lb.FamilyOf(addr))]
	t, err := openTap(l, proto, proto.answers)
	defer t.close()
	if err != nil {
		return nil, fmt.Errorf("ask on link %s: %w", l.Name, err)
	}

	macs := map[lb.MAC]bool{}
	question := proto.question(&l, lb.MAC{}, addr)
	err = t.askAll(ctx, question, within, func(frame []byte) (isEnough bool) {
		m, result := proto.parse(frame, l.MAC)
		if result == answered && m.isReply && m.claimed == addr {
			macs[m.mac] = true
		}

		return false
	})

	return macs, err
}

// askAll sends a frame three times within the given time, and calls handle with each frame that arrives, until handle
// returns true.
func (e *tap) askAll(
	ctx context.Context,
	frame []byte,
	within time.Duration,
	handle func(frame []byte) (isEnough bool),
) error {
	for range questionTimes {
		if frame == nil || !e.send(frame) {
			return fmt.Errorf("ask on link %s: it is down, or has no address of the family", e.link.Name)
		}

		end := time.Now().Add(within / questionTimes)
		for ctx.Err() == nil && time.Now().Before(end) {
			waitForFrame([]*tap{e}, time.Until(end))
			isEnough := false
			e.receive(func(frame []byte) { isEnough = isEnough || handle(frame) })
			if isEnough {
				return nil
			}
		}
	}

	return nil
}

// portProbe is one request for a connection.
type portProbe struct {
	link      lb.Interface
	mac       lb.MAC
	from, to  netip.AddrPort
	etherType uint16
	// icmpProtocol is the protocol number of ICMP of the family.
	icmpProtocol byte
	// offProtocol is the offset of the protocol number in a frame, and ipLen the length of the IP header.
	offProtocol, ipLen int
}

// newPortProbe returns the request for a connection to a machine on a link.
func newPortProbe(l lb.Interface, mac lb.MAC, from, to netip.AddrPort) *portProbe {
	k := &portProbe{
		link: l,
		mac:  mac,
		from: from,
		to:   to,
	}
	if to.Addr().Is6() {
		k.etherType = unix.ETH_P_IPV6
		k.icmpProtocol = unix.IPPROTO_ICMPV6
		k.offProtocol = ethernetLen + 6
		k.ipLen = ipv6.HeaderLen
		return k
	}

	k.etherType = unix.ETH_P_IP
	k.icmpProtocol = unix.IPPROTO_ICMP
	k.offProtocol = ethernetLen + 9
	k.ipLen = 20

	return k
}

// portPair returns the two ports as a TCP header has them.
func portPair(from, to netip.AddrPort) uint32 {
	return uint32(from.Port())<<16 | uint32(to.Port())
}

// segment makes the frame of a TCP segment without data.
func (k *portProbe) segment(sequence uint32, flags byte) []byte {
	addrs := slices.Concat(k.from.Addr().AsSlice(), k.to.Addr().AsSlice())
	tcp := binary.BigEndian.AppendUint32(nil, portPair(k.from, k.to))
	tcp = binary.BigEndian.AppendUint32(tcp, sequence)
	tcp = binary.BigEndian.AppendUint32(tcp, 0)                   // acknowledgement
	tcp = append(tcp, tcpLen/4<<4, flags, 0xff, 0xff, 0, 0, 0, 0) // window, checksum and urgent pointer
	binary.BigEndian.PutUint16(tcp[16:], sum(tcpLen+unix.IPPROTO_TCP, addrs, tcp))

	ethernet := ethernetHeader(k.mac, k.link.MAC, k.etherType)
	return slices.Concat(ethernet, k.ipHeader(addrs), tcp)
}

// ipHeader makes the IP header of a TCP segment without data.
func (k *portProbe) ipHeader(addrs []byte) []byte {
	const hops = 64
	if k.etherType == unix.ETH_P_IPV6 {
		ip := []byte{6 << 4, 0, 0, 0, 0, tcpLen, unix.IPPROTO_TCP, hops}
		return append(ip, addrs...)
	}

	const dontFragment = 1 << 6
	ip := []byte{4<<4 | 5, 0, 0, 20 + tcpLen, 0, 0, dontFragment, 0, hops, unix.IPPROTO_TCP, 0, 0}
	ip = append(ip, addrs...)
	binary.BigEndian.PutUint16(ip[10:], sum(0, ip))
	return ip
}

// replyFilter makes the program that passes ICMP, and segments from the asked port to the asking one.
func (k *portProbe) replyFilter() []bpf.Instruction {
	return toUs(
		bpf.LoadAbsolute{Off: uint32(k.offProtocol), Size: 1},
		skipIf(bpf.JumpEqual, uint32(k.icmpProtocol), 4),
		skipIf(bpf.JumpNotEqual, unix.IPPROTO_TCP, 2),
		bpf.LoadAbsolute{Off: uint32(ethernetLen + k.ipLen), Size: 4},
		skipIf(bpf.JumpEqual, portPair(k.to, k.from), 1),
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: maxFrame},
	)
}

// parse reads an answer. It returns "" for other frames.
func (k *portProbe) parse(frame []byte) PortState {
	body := ethernetLen + k.ipLen
	if len(frame) < body+tcpLen {
		return ""
	}

	if frame[k.offProtocol] == k.icmpProtocol {
		if k.isUnreachable(frame, body) {
			return PortRejected
		}
		return ""
	}

	addrLen := k.to.Addr().BitLen() / 8
	source := frame[body-2*addrLen : body-addrLen]
	if !k.concerns(source, frame[body:], portPair(k.to, k.from)) {
		return ""
	}

	flags := frame[body+13]
	switch {
	case flags&flagRST != 0:
		return PortRefuses
	case flags&(flagSYN|flagACK) == flagSYN|flagACK:
		return PortOpen
	}

	return ""
}

// isUnreachable reports whether the ICMP message at body is an error about the request. Such an error repeats the
// headers of the packet that it is about (RFC 792, RFC 4443 section 3.1).
func (k *portProbe) isUnreachable(frame []byte, body int) bool {
	const icmpLen, unreachable4, unreachable6 = 8, 3, 1
	unreachable := byte(unreachable4)
	if k.icmpProtocol == unix.IPPROTO_ICMPV6 {
		unreachable = unreachable6
	}

	repeatedTCP := body + icmpLen + k.ipLen
	if frame[body] != unreachable || len(frame) < repeatedTCP+4 {
		return false
	}

	addrLen := k.to.Addr().BitLen() / 8
	destination := frame[repeatedTCP-addrLen : repeatedTCP]
	return k.concerns(destination, frame[repeatedTCP:], portPair(k.from, k.to))
}

// concerns reports whether an address is the asked one, and a TCP header has the two ports.
func (k *portProbe) concerns(addr, tcp []byte, ports uint32) bool {
	isAsked := slices.Equal(addr, k.to.Addr().AsSlice())
	return isAsked && binary.BigEndian.Uint32(tcp) == ports
}
