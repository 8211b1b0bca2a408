package bfd

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

const (
	// The ports that neighbors send to (RFC 5881 section 4, RFC 5883 section 5).
	singleHopPort, multiHopPort = 3784, 4784
	// Packets come from a port of these, another one for each session (RFC 5881 section 4).
	firstPort, lastPort = 49152, 65535
)

// openUDP opens a socket with options that sends with the TTL of neighbors.
func openUDP(is6 bool, options ...rt.Option) (fd int, err error) {
	ttl := rt.Option{Level: unix.IPPROTO_IP, Name: unix.IP_TTL, Value: singleHopTTL}
	if is6 {
		ttl = rt.Option{Level: unix.IPPROTO_IPV6, Name: unix.IPV6_UNICAST_HOPS, Value: singleHopTTL}
	}
	return rt.UDP(is6, append(options, ttl)...)
}

// sender is the socket that one session sends from.
type sender struct {
	fd   int
	port int
	to   unix.Sockaddr
	// link is the index of the interface that the socket is bound to, or 0.
	link int
	// failing: the last packet could not be sent.
	failing bool
}

// openSender binds to a port that no other session has; start is where the search begins.
func openSender(p Peer, taken map[int]bool, start uint64) (*sender, error) {
	fd, err := openUDP(p.Address.Is6())
	if err != nil {
		return nil, err
	}

	s := &sender{fd: fd}
	if p.Interface != "" {
		s.link = p.Links[0]
		if err := unix.BindToDevice(fd, p.Interface); err != nil {
			s.close()
			return nil, fmt.Errorf("use interface %s: %w", p.Interface, err)
		}
	}

	local := cmp.Or(p.Source, unspecified(p.Address.Is6()))
	const ports = lastPort - firstPort + 1
	for i := range uint64(ports) {
		s.port = firstPort + int((start+i)%ports)
		if taken[s.port] {
			continue
		}

		err = unix.Bind(fd, rt.Sockaddr(netip.AddrPortFrom(local, uint16(s.port)), s.link))
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}

	if err != nil {
		s.close()
		return nil, fmt.Errorf("send from %s: %w", local, err)
	}

	s.to = rt.Sockaddr(netip.AddrPortFrom(p.Address, kindOf(p).port()), s.link)
	return s, nil
}

func (s *sender) close() { _ = unix.Close(s.fd) }

func unspecified(is6 bool) netip.Addr {
	if is6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// receiveBuffer holds what arrives for a session while the thread does not run.
const receiveBuffer = 1 << 15

// kind of a listener: there is one for all sessions of a family and a port.
type kind struct{ is6, multiHop bool }

func kindOf(p Peer) kind { return kind{p.Address.Is6(), p.MultiHop} }

func (k kind) port() uint16 {
	if k.multiHop {
		return multiHopPort
	}
	return singleHopPort
}

// listener receives at all addresses of the node, with a socket for each session: so the packets of one neighbor, of
// which there may be any number, leave no other neighbor's without room. The kernel chooses the socket (SO_REUSEPORT in
// socket(7)).
type listener struct {
	kind
	// sink is the first socket; it drops what belongs to no session. No other program may have the port when it is
	// bound, and it keeps the others' numbers: the kernel counts the sockets of a port in the order of their opening.
	sink  int
	slots []*slot
}

// slot is the socket of a session, or of none and ready for one.
type slot struct {
	fd      int
	session *session
	// reads counts datagrams since the thread's window began.
	reads int
}

func listen(k kind) (*listener, error) {
	fd, err := openUDP(k.is6)
	if err != nil {
		return nil, err
	}

	if err = unix.Bind(fd, rt.Sockaddr(netip.AddrPortFrom(unspecified(k.is6), k.port()), 0)); errors.Is(
		err,
		unix.EADDRINUSE,
	) {
		err = fmt.Errorf("another program on the node uses UDP port %d", k.port())
	}

	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}

	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}

	return &listener{kind: k, sink: fd}, nil
}

// serve has these sessions, and no others, hear their neighbors.
func (l *listener) serve(sessions []*session) error {
	for _, s := range l.slots {
		if !slices.Contains(sessions, s.session) {
			s.session = nil
		}
	}

	var entered []*slot
	for _, s := range sessions {
		if slices.ContainsFunc(l.slots, func(o *slot) bool { return o.session == s }) {
			continue
		}

		free, err := l.free()
		if err != nil {
			return err
		}

		free.session = s
		entered = append(entered, free)
	}

	chosen := make([]*session, len(l.slots))
	for i, s := range l.slots {
		chosen[i] = s.session
	}

	err := rt.Attach(l.sink, unix.SO_ATTACH_REUSEPORT_CBPF, choice(chosen))
	all := []bpf.Instruction{bpf.RetConstant{Val: rt.Whole}}
	for _, s := range l.slots {
		// Before, it may have got what is nobody's.
		err = cmp.Or(err, rt.Attach(s.fd, unix.SO_ATTACH_FILTER, all))
	}

	for _, s := range entered {
		s.drain()
	}

	return err
}

// free returns a slot without a session.
func (l *listener) free() (*slot, error) {
	if i := slices.IndexFunc(l.slots, func(s *slot) bool { return s.session == nil }); i >= 0 {
		return l.slots[i], nil
	}

	fd, err := openUDP(l.is6, rt.Option{Level: unix.SOL_SOCKET, Name: unix.SO_RCVBUF, Value: receiveBuffer},
		rt.Option{Level: unix.SOL_SOCKET, Name: unix.SO_REUSEPORT, Value: 1})
	if err != nil {
		return nil, err
	}

	if err := unix.Bind(fd, rt.Sockaddr(netip.AddrPortFrom(unspecified(l.is6), l.port()), 0)); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("bind UDP port %d: %w", l.port(), err)
	}

	s := &slot{fd: fd}
	l.slots = append(l.slots, s)
	return s, nil
}

func (l *listener) close() {
	_ = unix.Close(l.sink)
	for _, s := range l.slots {
		_ = unix.Close(s.fd)
	}
}

// drain forgets what came before the slot had its session.
func (s *slot) drain() {
	var b [packetLen]byte
	for range receiveBuffer / packetLen {
		if _, ok := s.read(b[:]); !ok {
			return
		}
	}
}

// read takes what waits next, and reports whether there was anything; nothing is valid of an error.
func (s *slot) read(b []byte) (n int, ok bool) {
	n, err := unix.Read(s.fd, b)
	return max(n, 0), !errors.Is(err, unix.EAGAIN)
}

// allowance is how many packets are read of a session in a window: twice what its neighbor may send, and some that
// answer or announce something. A flood must not keep a thread busy that has priority over all others.
func (s *session) allowance() int { return 4 + int(2*readWindow/s.peer.Receive) }

const (
	// Where the IP header has the TTL, and the source address. A choice of a socket sees a datagram from behind the UDP
	// header on.
	ttl4, source4 = rt.NetOffset + 8, rt.NetOffset + 12
	ttl6, source6 = rt.NetOffset + 7, rt.NetOffset + 8
)

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
			program = append(
				program,
				bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(l), SkipTrue: 1},
				bpf.Jump{Skip: uint32(rest + 1)},
			)
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
		program = append(
			program,
			bpf.LoadAbsolute{Off: source + uint32(i), Size: word},
			bpf.JumpIf{
				Cond:     bpf.JumpNotEqual,
				Val:      binary.BigEndian.Uint32(b[i:]),
				SkipTrue: uint8((len(b)-i-word)/2 + end),
			},
		)
	}

	return append(program,
		bpf.LoadAbsolute{Off: ttl, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: uint32(s.minTTL()), SkipTrue: 1},
		bpf.RetConstant{Val: value},
	)
}
