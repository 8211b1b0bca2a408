// Package rt is what threads with real-time priority stand on: a clock, UDP sockets that the runtime's poller does not
// know, filters on them, seals of packets, and a wait that other threads can end. A call needs no memory, waits for no
// other thread, and does not log.
package rt

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Boottime is the time since boot, suspension included; setting the wall clock does not change it.
func Boottime() time.Duration { return Clock(unix.CLOCK_BOOTTIME) }

// Clock reads a clock of the kernel.
func Clock(id int32) time.Duration {
	var t unix.Timespec
	if _, _, err := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, uintptr(id), uintptr(unsafe.Pointer(&t)), 0); err != 0 {
		panic(fmt.Sprintf("no clock %d: %v", id, err)) // since Linux 2.6.39
	}
	return time.Duration(t.Nano())
}

// Random returns an unguessable number that is not 0.
func Random() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand
	return max(binary.NativeEndian.Uint64(b[:]), 1)
}

// Event ends waits of one thread.
type Event struct {
	fd   int
	junk [8]byte
}

// NewEvent returns an Event that was not woken.
func NewEvent() (*Event, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open eventfd: %w", err)
	}
	return &Event{fd: fd}, nil
}

// Wake ends the present wait, or the next one.
func (e *Event) Wake() {
	one := [8]byte{7: 1}
	_, _ = unix.Write(e.fd, one[:]) // fails only if it is full of wake-ups
}

// Wait returns when one of the files is ready, when it is woken, or after a time. Any error is a reason to look, too.
// The first of the files is the Event's own.
func (e *Event) Wait(d time.Duration, files []unix.PollFd) {
	files[0] = unix.PollFd{Fd: int32(e.fd), Events: unix.POLLIN}
	if Poll(files, d) > 0 && files[0].Revents != 0 {
		_, _ = unix.Read(e.fd, e.junk[:])
	}
}

// Poll is ppoll(2). A signal may end it early.
func Poll(files []unix.PollFd, d time.Duration) int {
	timeout := unix.NsecToTimespec(max(d, 0).Nanoseconds())
	return poll(files, &timeout)
}

// poll gives its place among GOMAXPROCS back first, as waits of the runtime itself do. During an ordinary system call
// the runtime's monitor looks for 10 ms, up to every 20 us, whether it should take the place: that costs more than all
// that the thread does between two waits.
//
//go:norace
//go:nosplit
func poll(files []unix.PollFd, timeout *unix.Timespec) int {
	entersyscallblock()
	n, _, _ := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(files))), uintptr(len(files)),
		uintptr(unsafe.Pointer(timeout)), 0, 0, 0)
	exitsyscall()
	return int(n)
}

// CloseFile closes a file as poll waits, because that takes long: 10 ms for a packet socket (synchronize_net).
//
//go:norace
//go:nosplit
func CloseFile(fd int) {
	entersyscallblock()
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
	exitsyscall()
}

//go:linkname entersyscallblock runtime.entersyscallblock
func entersyscallblock()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

const (
	// classSelector6 is the DSCP of network control (RFC 4594 section 3.1); socketPriority is the highest that needs no
	// capability (socket(7), SO_PRIORITY).
	classSelector6 = 48 << 2
	socketPriority = 6
)

// Option is a socket option.
type Option struct{ Level, Name, Value int }

// UDP opens a socket with options, which does not wait. It drops all datagrams until it is given a filter.
func UDP(is6 bool, options ...Option) (fd int, err error) {
	family, common := unix.AF_INET, []Option{{unix.IPPROTO_IP, unix.IP_TOS, classSelector6}}
	if is6 {
		family, common = unix.AF_INET6, []Option{
			{unix.IPPROTO_IPV6, unix.IPV6_TCLASS, classSelector6},
			{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
		}
	}
	if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP); err != nil {
		return -1, fmt.Errorf("open socket: %w", err)
	}
	err = Attach(fd, unix.SO_ATTACH_FILTER, []bpf.Instruction{bpf.RetConstant{Val: 0}})
	for _, o := range append(append(common, Option{unix.SOL_SOCKET, unix.SO_PRIORITY, socketPriority}), options...) {
		if err == nil {
			err = os.NewSyscallError(
				fmt.Sprintf("set socket option %d of level %d", o.Name, o.Level),
				unix.SetsockoptInt(fd, o.Level, o.Name, o.Value),
			)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Attach gives a socket a program, by one of the options SO_ATTACH_FILTER and SO_ATTACH_REUSEPORT_CBPF (socket(7)).
func Attach(fd, option int, program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("assemble filter: %w", err)
	}
	instructions := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		instructions[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	filter := &unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]}
	return os.NewSyscallError("attach filter", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, option, filter))
}

// A filter of a UDP socket sees a datagram from the UDP header on; what lies at NetOffset and beyond is the IP header
// (linux/filter.h, SKF_NET_OFF). Whole lets all of a datagram pass.
const (
	UDPHeaderLen = 8
	NetOffset    = 0xfff00000
	Whole        = 1 << 16
)

// Send sends a datagram, and does not report whether it arrived.
func Send(fd int, b []byte, to unix.Sockaddr) error {
	err := unix.Sendto(fd, b, unix.MSG_DONTWAIT, to)
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		// It may be the error of an earlier packet, to another address.
		err = unix.Sendto(fd, b, unix.MSG_DONTWAIT, to)
	}
	return err
}

// Sockaddr is an address and port, a link-local one on a link.
func Sockaddr(a netip.AddrPort, link int) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	s := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if a.Addr().IsLinkLocalUnicast() {
		s.ZoneId = uint32(link)
	}
	return s
}
