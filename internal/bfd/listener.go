package bfd

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

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
	if err = unix.Bind(fd, rt.Sockaddr(netip.AddrPortFrom(unspecified(k.is6), k.port()), 0)); errors.Is(err, unix.EADDRINUSE) {
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
	for _, s := range l.slots {
		// Before, it may have got what is nobody's.
		err = cmp.Or(err, rt.Attach(s.fd, unix.SO_ATTACH_FILTER, wellFormed))
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

// allowance is how many packets are read of a session in a window: twice what its neighbor may send, and some that answer
// or announce something. A flood must not keep a thread busy that has priority over all others.
func (s *session) allowance() int { return 4 + int(2*readWindow/s.peer.Receive) }
