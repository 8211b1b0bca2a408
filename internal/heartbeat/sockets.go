package heartbeat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

// receiveBuffer is the size of a buffer for datagrams that arrive while the thread does not run.
const receiveBuffer = 1 << 20

// sockets are the UDP sockets of the thread, with a waiter for them.
type sockets struct {
	// urgent receives datagrams that wake the thread. routine receives heartbeats that can wait; the kernel dates
	// them.
	urgent, routine *batchSocket
	// out sends all datagrams: a kernel sends one refusal a second, whatever ports it refuses to.
	out *batchSocket
	// refusals receives the errors of out. Any machine can forge them, so they have memory of their own.
	refusals *batchSocket
	*waiter
	is6 bool
}

// openSockets binds to this node's own address, so that other nodes receive packets from it.
func openSockets(local netip.AddrPort) (s *sockets, err error) {
	s = &sockets{
		urgent:   newBatchSocket(),
		routine:  newBatchSocket(),
		out:      newBatchSocket(),
		refusals: newBatchSocket(),
		is6:      local.Addr().Is6(),
	}
	s.waiter, err = newWaiter()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()

	// No other program may have the port when urgent is bound. The kernel counts the sockets of a port in the order
	// in which they were opened.
	share := rt.Option{Level: unix.SOL_SOCKET, Name: unix.SO_REUSEPORT, Value: 1}
	dates := rt.Option{Level: unix.SOL_SOCKET, Name: unix.SO_TIMESTAMPNS, Value: 1}
	s.urgent.fd, err = openUDP(local, dates)
	if err != nil {
		return nil, err
	}
	if err = unix.SetsockoptInt(s.urgent.fd, share.Level, share.Name, share.Value); err != nil {
		return nil, fmt.Errorf("share UDP %s: %w", local, err)
	}
	s.routine.fd, err = openUDP(local, share, dates)
	if err != nil {
		return nil, err
	}
	if err = rt.Attach(s.urgent.fd, unix.SO_ATTACH_REUSEPORT_CBPF, routineFilter); err != nil {
		return nil, err
	}

	reports := rt.Option{Level: unix.IPPROTO_IP, Name: unix.IP_RECVERR, Value: 1}
	if s.is6 {
		reports = rt.Option{Level: unix.IPPROTO_IPV6, Name: unix.IPV6_RECVERR, Value: 1}
	}
	s.out.fd, err = openUDP(netip.AddrPortFrom(local.Addr(), 0), reports)
	if err != nil {
		return nil, err
	}
	s.refusals.fd = s.out.fd

	for _, b := range []*batchSocket{s.urgent, s.routine} {
		// With NET_ADMIN the buffer may be larger than the system's limit.
		_ = unix.SetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	}

	return s, nil
}

// openUDP returns a bound UDP socket that drops all datagrams until setFilter is called.
func openUDP(local netip.AddrPort, options ...rt.Option) (fd int, err error) {
	options = append(options, rt.Option{Level: unix.SOL_SOCKET, Name: unix.SO_RCVBUF, Value: receiveBuffer})
	fd, err = rt.UDP(local.Addr().Is6(), options...)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, rt.Sockaddr(local, 0)); err != nil {
		return -1, errors.Join(fmt.Errorf("bind UDP %s: %w", local, err), unix.Close(fd))
	}

	return fd, nil
}

func (s *sockets) close() {
	for _, b := range []*batchSocket{s.urgent, s.routine, s.out} {
		if b.fd >= 0 {
			_ = unix.Close(b.fd)
		}
	}
	s.waiter.close()
}

// The types and codes of "port unreachable": RFC 792, and RFC 4443 section 3.1.
const (
	icmpUnreachable, icmpPort   = 3, 3
	icmp6Unreachable, icmp6Port = 1, 4
)

// refusal reads an error of the socket that sends. It reports whether the kernel of a packet's destination refused
// the packet because no program listens there, and returns the address of that node and the beginning of the packet.
// Any machine can send such an error, but only a machine that saw the packet knows its beginning.
func (b *batchSocket) refusal(i int) (from netip.Addr, packet []byte, ok bool) {
	messages, err := unix.ParseSocketControlMessage(b.control(i))
	if err != nil {
		return netip.Addr{}, nil, false
	}
	for _, m := range messages {
		offender, ok := portUnreachable(m.Data)
		if ok && offender == b.sender(i) {
			return offender, b.datagram(i), true
		}
	}

	return netip.Addr{}, nil, false
}

// portUnreachable reads a struct sock_extended_err with the address behind it (ip(7), IP_RECVERR).
func portUnreachable(b []byte) (offender netip.Addr, ok bool) {
	const size = int(unsafe.Sizeof(unix.SockExtendedErr{}))
	if len(b) < size+unix.SizeofSockaddrInet4 {
		return netip.Addr{}, false
	}

	origin, kind, code := b[4], b[5], b[6]
	b = b[size:]
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		if origin == unix.SO_EE_ORIGIN_ICMP && kind == icmpUnreachable && code == icmpPort {
			return netip.AddrFrom4([4]byte(b[4:8])), true
		}
	case unix.AF_INET6:
		isPort := origin == unix.SO_EE_ORIGIN_ICMP6 && kind == icmp6Unreachable && code == icmp6Port
		if isPort && len(b) >= 24 {
			return netip.AddrFrom16([16]byte(b[8:24])), true
		}
	}

	return netip.Addr{}, false
}
