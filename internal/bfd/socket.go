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
	// singleHopPort and multiHopPort are the destination ports (RFC 5881 section 4, RFC 5883 section 5).
	singleHopPort, multiHopPort = 3784, 4784
	// firstPort and lastPort are the range of source ports. Each session has another one (RFC 5881 section 4).
	firstPort, lastPort = 49152, 65535
)

// openUDP opens a socket that sends with singleHopTTL.
func openUDP(is6 bool, options ...rt.Option) (fd int, err error) {
	ttl := rt.Option{Level: unix.IPPROTO_IP, Name: unix.IP_TTL, Value: singleHopTTL}
	if is6 {
		ttl = rt.Option{Level: unix.IPPROTO_IPV6, Name: unix.IPV6_UNICAST_HOPS, Value: singleHopTTL}
	}
	return rt.UDP(is6, append(options, ttl)...)
}

// sender is the socket from which one session sends.
type sender struct {
	fd   int
	port int
	to   unix.Sockaddr
	// link is the index of the interface to which the socket is bound; 0 for none.
	link int
	// failing reports whether the last packet could not be sent.
	failing bool
}

// openSender opens a socket and binds it to a port that no other session has. The search begins at start.
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

// close closes the socket.
func (s *sender) close() { _ = unix.Close(s.fd) }

// unspecified returns the unspecified address of a family.
func unspecified(is6 bool) netip.Addr {
	if is6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// receiveBuffer is the size of a session's receive buffer, in bytes. It holds packets while the thread does not run.
const receiveBuffer = 1 << 15

// kind identifies a listener. All sessions of a family and a port share one.
type kind struct{ is6, multiHop bool }

// kindOf returns the kind of the peer's listener.
func kindOf(p Peer) kind { return kind{p.Address.Is6(), p.MultiHop} }

// port returns the destination port.
func (k kind) port() uint16 {
	if k.multiHop {
		return multiHopPort
	}
	return singleHopPort
}

// listener receives at all addresses of the node, with a socket for each session. So a flood of one neighbor does not
// fill the buffer of another. The kernel chooses the socket by a program (SO_REUSEPORT in socket(7)).
type listener struct {
	kind
	// sink is the first socket. It gets the packets of no session, and drops them. It is bound without SO_REUSEPORT, so
	// no other program has the port. It also keeps the numbers of the other sockets: the kernel numbers the sockets of
	// a port in the order of their opening.
	sink  int
	slots []*slot
}

// slot is the socket of a session. Without a session it is free.
type slot struct {
	fd      int
	session *session
	// reads counts the datagrams since the start of the thread's window.
	reads int
}

// listen opens a listener without sessions.
func listen(k kind) (*listener, error) {
	fd, err := openUDP(k.is6)
	if err != nil {
		return nil, err
	}

	err = unix.Bind(fd, rt.Sockaddr(netip.AddrPortFrom(unspecified(k.is6), k.port()), 0))
	if errors.Is(err, unix.EADDRINUSE) {
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

// serve gives each of these sessions a socket, and frees the sockets of all others.
func (l *listener) serve(sessions []*session) error {
	for _, s := range l.slots {
		if !slices.Contains(sessions, s.session) {
			s.session = nil
		}
	}

	var added []*slot
	for _, s := range sessions {
		if slices.ContainsFunc(l.slots, func(o *slot) bool { return o.session == s }) {
			continue
		}

		free, err := l.free()
		if err != nil {
			return err
		}

		free.session = s
		added = append(added, free)
	}

	chosen := make([]*session, len(l.slots))
	for i, s := range l.slots {
		chosen[i] = s.session
	}

	err := rt.Attach(l.sink, unix.SO_ATTACH_REUSEPORT_CBPF, socketSelector(chosen))
	all := []bpf.Instruction{bpf.RetConstant{Val: rt.Whole}}
	for _, s := range l.slots {
		// Accept packets after the selector is in force: before, a new socket may get packets of no session.
		err = cmp.Or(err, rt.Attach(s.fd, unix.SO_ATTACH_FILTER, all))
	}

	for _, s := range added {
		s.drain()
	}

	return err
}

// free returns a slot without a session. It opens one if there is none.
func (l *listener) free() (*slot, error) {
	for _, s := range l.slots {
		if s.session == nil {
			return s, nil
		}
	}

	fd, err := openUDP(
		l.is6,
		rt.Option{Level: unix.SOL_SOCKET, Name: unix.SO_RCVBUF, Value: receiveBuffer},
		rt.Option{Level: unix.SOL_SOCKET, Name: unix.SO_REUSEPORT, Value: 1},
	)
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

// close closes all sockets of the listener.
func (l *listener) close() {
	_ = unix.Close(l.sink)
	for _, s := range l.slots {
		_ = unix.Close(s.fd)
	}
}

// drain discards the datagrams that arrived before the slot had its session.
func (s *slot) drain() {
	var b [packetLen]byte
	for range receiveBuffer / packetLen {
		if _, ok := s.read(b[:]); !ok {
			return
		}
	}
}

// read reads a datagram, and reports whether there was one. After an error the datagram is empty.
func (s *slot) read(b []byte) (n int, ok bool) {
	n, err := unix.Read(s.fd, b)
	return max(n, 0), !errors.Is(err, unix.EAGAIN)
}

// allowance returns the number of packets that are read for a session in a window. It is twice the number that the
// neighbor may send, and some more for Finals and changes of state. A flood must not occupy a thread with real-time
// priority.
func (s *session) allowance() int { return 4 + int(2*readWindow/s.peer.Receive) }

const (
	// Offsets of the TTL and the source in the IP header. A selector sees a datagram from behind the UDP header on, and
	// the IP header at NetOffset.
	ttl4, source4 = rt.NetOffset + 8, rt.NetOffset + 12
	ttl6, source6 = rt.NetOffset + 7, rt.NetOffset + 8
)

// socketSelector returns a program that finds the session of a datagram by its link, source and TTL. The program
// returns the index of the session plus 1, or 0 for the sink. Sessions with the same links share the test of the link.
func socketSelector(sessions []*session) (program []bpf.Instruction) {
	done := make([]bool, len(sessions))
	for i, first := range sessions {
		if first == nil || done[i] {
			continue
		}

		var body []bpf.Instruction
		for j, s := range sessions[i:] {
			if s != nil && slices.Equal(s.peer.Links, first.peer.Links) {
				done[i+j] = true
				body = append(body, s.matchOrigin(uint32(i+j+1))...)
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

// matchOrigin returns a program that returns the value for a datagram of the session's neighbor with a sufficient TTL.
// For any other datagram it continues behind its end.
func (s *session) matchOrigin(value uint32) (program []bpf.Instruction) {
	b := s.peer.Address.AsSlice()
	ttl, source := uint32(ttl4), uint32(source4)
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
