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

// socket is a few UDP sockets that the runtime's poller does not know, and an
// eventfd that ends a wait for them.
type socket struct {
	// fd takes datagrams, except those that can wait: beats takes them, and the kernel dates them. out sends all and takes what
	// is refused, so that errors, which anybody can forge, do not fill the memory of fd. All packets go by out: a kernel sends
	// one refusal a second, whatever ports it refuses to.
	fd, beats, out int
	event          *rt.Event
	is6            bool
	// Memory that the kernel writes to: x/sys would allocate some for each packet.
	from unix.RawSockaddrAny
	oob  [512]byte
	junk [64]byte
}

// openSocket binds to this node's own address, so that others see packets come from it.
func openSocket(local netip.AddrPort) (s *socket, err error) {
	s = &socket{is6: local.Addr().Is6(), fd: -1, beats: -1, out: -1}
	if s.event, err = rt.NewEvent(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	// No other program may have the port when fd is bound. The kernel counts the sockets of a port in the order of their opening.
	share := rt.Option{Level: unix.SOL_SOCKET, Name: unix.SO_REUSEPORT, Value: 1}
	if s.fd, err = bound(local); err != nil {
		return nil, err
	}
	if err = unix.SetsockoptInt(s.fd, share.Level, share.Name, share.Value); err != nil {
		return nil, fmt.Errorf("share UDP %s: %w", local, err)
	}
	if s.beats, err = bound(local, share, rt.Option{Level: unix.SOL_SOCKET, Name: unix.SO_TIMESTAMPNS, Value: 1}); err != nil {
		return nil, err
	}
	if err = rt.Attach(s.fd, unix.SO_ATTACH_REUSEPORT_CBPF, choice); err != nil {
		return nil, err
	}
	reports := rt.Option{Level: unix.IPPROTO_IP, Name: unix.IP_RECVERR, Value: 1}
	if s.is6 {
		reports = rt.Option{Level: unix.IPPROTO_IPV6, Name: unix.IPV6_RECVERR, Value: 1}
	}
	if s.out, err = bound(netip.AddrPortFrom(local.Addr(), 0), reports); err != nil {
		return nil, err
	}
	for _, fd := range []int{s.fd, s.beats} {
		// With NET_ADMIN it may be larger than the system's limit.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	}
	return s, nil
}

// bound returns a UDP socket with options that drops all datagrams: see thread.filter.
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
	for _, fd := range []int{s.fd, s.beats, s.out} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	s.event.Close()
}

// wait returns when there is something to do or, if wanted, to read: datagrams, even those that can wait, or refusals; or after a
// time.
func (s *socket) wait(d time.Duration, datagrams, beats, refusals bool) {
	// poll(2) ignores what is negative, and reports errors unasked.
	files := []unix.PollFd{{}, {Fd: -1, Events: unix.POLLIN}, {Fd: -1, Events: unix.POLLIN}, {Fd: -1}}
	if datagrams {
		files[1].Fd = int32(s.fd)
	}
	if datagrams && beats {
		files[2].Fd = int32(s.beats)
	}
	if refusals {
		files[3].Fd = int32(s.out)
	}
	s.event.Wait(d, files)
}

// message takes what waits next at a socket. control is valid until the next call.
func (s *socket) message(fd int, b []byte, flags int) (n int, control []byte, err unix.Errno) {
	data := unix.Iovec{Base: unsafe.SliceData(b)}
	data.SetLen(len(b))
	head := unix.Msghdr{Name: (*byte)(unsafe.Pointer(&s.from)), Namelen: unix.SizeofSockaddrAny, Iov: &data, Control: &s.oob[0]}
	head.SetIovlen(1)
	head.SetControllen(len(s.oob))
	r, _, err := unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&head)), uintptr(flags|unix.MSG_DONTWAIT))
	return int(r), s.oob[:head.Controllen], err
}

// read takes what waits next, and reports whether there was anything. n is 0 for
// a datagram that is too long. at is when it came, by the wall clock, at a socket that dates.
func (s *socket) read(fd int, b []byte) (n int, from netip.Addr, at time.Duration, ok bool) {
	n, control, err := s.message(fd, b, unix.MSG_TRUNC)
	switch {
	case err == unix.EAGAIN:
		return 0, netip.Addr{}, 0, false
	case err != 0 || n > len(b):
		return 0, netip.Addr{}, 0, true
	}
	if len(control) >= unix.CmsgLen(int(unsafe.Sizeof(unix.Timespec{}))) { // the only kind that was asked for
		at = time.Duration((*unix.Timespec)(unsafe.Pointer(&control[unix.CmsgLen(0)])).Nano())
	}
	return n, s.sender(), at, true
}

// sender is the address that the kernel wrote to from.
func (s *socket) sender() netip.Addr {
	switch s.from.Addr.Family {
	case unix.AF_INET:
		return netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&s.from)).Addr)
	case unix.AF_INET6:
		return netip.AddrFrom16((*unix.RawSockaddrInet6)(unsafe.Pointer(&s.from)).Addr)
	}
	return netip.Addr{}
}

// Types and codes of "port unreachable": RFC 792 and RFC 4443 section 3.1.
const (
	icmpUnreachable, icmpPort   = 3, 3
	icmp6Unreachable, icmp6Port = 1, 4
)

// refusal takes one error off the queue, and reports whether there was any. If the
// kernel of a packet's destination reported that nobody listens there, it returns the
// node's address and the beginning of the packet, valid until the next call. Anybody can
// send such an error, but only a machine that saw the packet knows how it begins.
func (s *socket) refusal() (from netip.Addr, packet []byte, ok bool) {
	n, control, errno := s.message(s.out, s.junk[:], unix.MSG_ERRQUEUE)
	if errno != 0 {
		return netip.Addr{}, nil, errno != unix.EAGAIN
	}
	to := s.sender()
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}, nil, true
	}
	for _, m := range messages {
		if offender, is := portUnreachable(m.Data); is && offender == to {
			return to, s.junk[:n], true
		}
	}
	return netip.Addr{}, nil, true
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
