package layer2

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// writeTimeout bounds how long an answer waits for a blocked link. It delays only other answers there.
const writeTimeout = 50 * time.Millisecond

// wire reads and writes whole Ethernet frames of one protocol on a link, one per call.
type wire interface {
	Read(frame []byte) (int, error)
	Write(frame []byte) (int, error)
	// Offer writes a frame if the link takes it at once, and reports whether it did.
	Offer(frame []byte) (taken bool, err error)
	// SetFilter replaces the program that selects the frames to read.
	SetFilter(program []bpf.Instruction) error
	Close() error
}

// socket is the wire of a real link.
type socket struct {
	*packet.Conn
	// index of the link.
	index int
}

// receiveBuffer has room for simultaneous questions of some thousand neighbours.
const receiveBuffer = 4 << 20

// listen opens a packet socket for one protocol on a link, filtered for these
// addresses.
func listen(l lb.Interface, p protocol, addrs []netip.Addr) (wire, error) {
	filter, err := bpf.Assemble(receivedBy(l.Index, p.filter(addrs)))
	if err != nil {
		return nil, fmt.Errorf("assemble %s filter: %w", p.name, err)
	}
	ifi := &net.Interface{Index: l.Index, Name: l.Name, HardwareAddr: l.MAC.HardwareAddr()}
	conn, err := packet.Listen(ifi, packet.Raw, int(p.etherType), &packet.Config{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("open %s socket on %s: %w", p.name, l.Name, err)
	}
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { enlarge(int(fd)) })
	}
	return socket{conn, l.Index}, nil
}

// enlarge gives a socket its receive buffer, as far as it may: more than net.core.rmem_max needs CAP_NET_ADMIN.
func enlarge(fd int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
}

// SetFilter implements wire.
func (s socket) SetFilter(program []bpf.Instruction) error {
	filter, err := bpf.Assemble(receivedBy(s.index, program))
	if err != nil {
		return fmt.Errorf("assemble filter: %w", err)
	}
	return s.SetBPF(filter)
}

// Read reads one frame.
func (s socket) Read(frame []byte) (int, error) {
	n, _, err := s.ReadFrom(frame)
	return n, err
}

// Write sends one frame to the destination in its header.
func (s socket) Write(frame []byte) (int, error) {
	if err := s.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return s.WriteTo(frame, &packet.Addr{HardwareAddr: frame[offDestination:offSource]})
}

// Offer sends one frame without waiting for a blocked link.
func (s socket) Offer(frame []byte) (taken bool, err error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return false, err
	}
	// Not raw.Write: the deadline of the last answer ends that too.
	closed := raw.Control(func(fd uintptr) { taken, err = offer(int(fd), frame) })
	return taken, errors.Join(closed, err)
}

// offer writes a frame to a packet socket if the link takes it at once.
func offer(fd int, frame []byte) (taken bool, err error) {
	for {
		switch _, err := unix.Write(fd, frame); err {
		case nil:
			return true, nil
		case unix.EINTR:
		case unix.EAGAIN, unix.ENOBUFS:
			return false, nil
		default:
			return false, err
		}
	}
}
