package heartbeat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

// receiveBuffer holds what arrives while the thread does not run.
const receiveBuffer = 1 << 20

// socket is a few UDP sockets, and what waits for them.
type socket struct {
	// urgent takes datagrams, except those that can wait: beats takes them, and the kernel dates them. out sends all,
	// and refusals are errors of the same socket, so that these, which anybody can forge, do not fill the memory of the
	// others. All packets go by out: a kernel sends one refusal a second, whatever ports it refuses to.
	urgent, beats, out, refusals *box
	*waiter
	is6 bool
}

// openSocket binds to this node's own address, so that others see packets come from it.
func openSocket(local netip.AddrPort) (s *socket, err error) {
	s = &socket{urgent: newBox(), beats: newBox(), out: newBox(), refusals: newBox(), is6: local.Addr().Is6()}
	if s.waiter, err = newWaiter(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	// No other program may have the port when urgent is bound. The kernel counts the sockets of a port in the order of
	// their opening.
	share := rt.Option{Level: unix.SOL_SOCKET, Name: unix.SO_REUSEPORT, Value: 1}
	dates := rt.Option{Level: unix.SOL_SOCKET, Name: unix.SO_TIMESTAMPNS, Value: 1}
	if s.urgent.fd, err = bound(local, dates); err != nil {
		return nil, err
	}
	if err = unix.SetsockoptInt(s.urgent.fd, share.Level, share.Name, share.Value); err != nil {
		return nil, fmt.Errorf("share UDP %s: %w", local, err)
	}
	if s.beats.fd, err = bound(local, share, dates); err != nil {
		return nil, err
	}
	if err = rt.Attach(s.urgent.fd, unix.SO_ATTACH_REUSEPORT_CBPF, choice); err != nil {
		return nil, err
	}
	reports := rt.Option{Level: unix.IPPROTO_IP, Name: unix.IP_RECVERR, Value: 1}
	if s.is6 {
		reports = rt.Option{Level: unix.IPPROTO_IPV6, Name: unix.IPV6_RECVERR, Value: 1}
	}
	if s.out.fd, err = bound(netip.AddrPortFrom(local.Addr(), 0), reports); err != nil {
		return nil, err
	}
	s.refusals.fd = s.out.fd
	for _, b := range []*box{s.urgent, s.beats} {
		// With NET_ADMIN it may be larger than the system's limit.
		_ = unix.SetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	}
	return s, nil
}

// bound returns a UDP socket with options that drops all datagrams: see accept.
func bound(local netip.AddrPort, options ...rt.Option) (fd int, err error) {
	options = append(options, rt.Option{Level: unix.SOL_SOCKET, Name: unix.SO_RCVBUF, Value: receiveBuffer})
	if fd, err = rt.UDP(local.Addr().Is6(), options...); err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, rt.Sockaddr(local, 0)); err != nil {
		return -1, errors.Join(fmt.Errorf("bind UDP %s: %w", local, err), unix.Close(fd))
	}
	return fd, nil
}

func (s *socket) close() {
	for _, b := range []*box{s.urgent, s.beats, s.out} {
		if b.fd >= 0 {
			_ = unix.Close(b.fd)
		}
	}
	s.waiter.close()
}

// wait returns when there is something to do or, if wanted, to read: datagrams, even those that can wait, or refusals;
// or after a time.
func (s *socket) wait(d time.Duration, datagrams, beats, refusals bool) {
	s.watch(urgentFile, s.urgent.fd, unix.EPOLLIN, datagrams)
	s.watch(beatsFile, s.beats.fd, unix.EPOLLIN, datagrams && beats)
	s.watch(refusalsFile, s.out.fd, 0, refusals) // errors are reported unasked
	s.sleep(d)
}

// Types and codes of "port unreachable": RFC 792 and RFC 4443 section 3.1.
const (
	icmpUnreachable, icmpPort   = 3, 3
	icmp6Unreachable, icmp6Port = 1, 4
)

// refusal reads an error of a socket that sends. If the kernel of a packet's destination reported that nobody listens
// there, it returns the node's address and the beginning of the packet. Anybody can send such an error, but only a
// machine that saw the packet knows how it begins.
func (b *box) refusal(i int) (from netip.Addr, packet []byte, ok bool) {
	messages, err := unix.ParseSocketControlMessage(b.control(i))
	if err != nil {
		return netip.Addr{}, nil, false
	}
	for _, m := range messages {
		if offender, is := portUnreachable(m.Data); is && offender == b.from(i) {
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
		if origin == unix.SO_EE_ORIGIN_ICMP6 && kind == icmp6Unreachable && code == icmp6Port && len(b) >= 24 {
			return netip.AddrFrom16([16]byte(b[8:24])), true
		}
	}
	return netip.Addr{}, false
}
