package layer2

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// receiveBuffer has room for simultaneous questions of some thousand neighbours.
const receiveBuffer = 4 << 20

// socket is a packet socket of one protocol on one link, whose calls do not wait.
type socket struct {
	link  lb.Interface
	proto protocol
	fd    int
}

// open opens a socket for frames that pass the program. If that fails, the socket has the descriptor -1.
func open(l lb.Interface, p protocol, program []bpf.Instruction) (socket, error) {
	fail := func(err error) (socket, error) {
		return socket{
			link:  l,
			proto: p,
			fd:    -1,
		}, fmt.Errorf("open %s socket on %s: %w", p.name, l.Name, err)
	}

	// Protocol 0 receives nothing (packet(7)) until the filter is set.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fail(err)
	}

	s := socket{
		link:  l,
		proto: p,
		fd:    fd,
	}
	if err := s.SetFilter(program); err != nil {
		return fail(errors.Join(err, unix.Close(fd)))
	}

	// More than net.core.rmem_max needs CAP_NET_ADMIN.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}

	bigEndian := p.etherType<<8 | p.etherType>>8
	err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian, Ifindex: l.Index})
	if err != nil {
		return fail(errors.Join(err, unix.Close(fd)))
	}

	return s, nil
}

// Try opens a packet socket and closes it. Without packet sockets it returns an error: the node then answers neither
// ARP nor NDP on any link.
func Try() error {
	// Protocol 0 receives nothing (packet(7)).
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	return unix.Close(fd)
}

// SetFilter replaces the program that selects the frames to receive.
func (s socket) SetFilter(program []bpf.Instruction) error {
	return rt.Attach(s.fd, unix.SO_ATTACH_FILTER, receivedBy(s.link.Index, program))
}

// TryWrite sends a frame if the link takes it at once, and reports whether it did.
func (s socket) TryWrite(frame []byte) (hasSent bool, err error) {
	for {
		switch _, err := unix.Write(s.fd, frame); err {
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

// frameConn reads and writes whole Ethernet frames of one protocol on a link, one per call. Only Read and Write wait,
// and only they may be called concurrently with the other methods.
type frameConn interface {
	Read(frame []byte) (int, error)
	Write(frame []byte) (int, error)
	TryWrite(frame []byte) (hasSent bool, err error)
	SetFilter(program []bpf.Instruction) error
	Close() error
}

// polledSocket is the frameConn of a real link: its socket, with Go's poller to wait for it.
type polledSocket struct {
	socket
	*os.File
}

// listen opens a connection that receives nothing about any address until its filter is set.
func listen(l lb.Interface, p protocol) (frameConn, error) {
	s, err := open(l, p, p.filter(nil))
	if err != nil {
		return nil, err
	}
	return polledSocket{s, os.NewFile(uintptr(s.fd), l.Name)}, nil
}

// writeTimeout bounds how long an answer waits for a blocked link. It delays only other answers there.
const writeTimeout = 50 * time.Millisecond

// Write sends one frame to the destination in its header.
func (w polledSocket) Write(frame []byte) (int, error) {
	err := w.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err != nil {
		return 0, err
	}
	return w.File.Write(frame)
}

// tap is a socket without a reader goroutine: frames wake nothing and wait until the owner receives them.
type tap struct {
	socket
	frame [maxFrame]byte
	// hasFailed reports whether the link went down or vanished, or the socket could not be opened.
	hasFailed bool
}

// tapBatch bounds the frames that are read at once, so that a flood does not block the caller.
const tapBatch = 4096

// openTap opens a tap for frames that pass the program. If that fails the tap has hasFailed set.
func openTap(l lb.Interface, p protocol, program []bpf.Instruction) (*tap, error) {
	s, err := open(l, p, program)
	return &tap{socket: s, hasFailed: err != nil}, err
}

// send sends one frame without waiting for a blocked link. It reports whether the frame was sent.
func (e *tap) send(frame []byte) bool {
	hasSent, err := e.TryWrite(frame)
	if err != nil {
		e.hasFailed = true
	}
	return hasSent
}

// receive calls handle with each frame that has arrived. The frame is valid only during the call.
func (e *tap) receive(handle func(frame []byte)) {
	for range tapBatch {
		if e.hasFailed {
			return
		}

		switch n, err := unix.Read(e.fd, e.frame[:]); err {
		case nil:
			handle(e.frame[:n])
		case unix.EINTR:
		case unix.EAGAIN:
			return
		default:
			// A link that goes down or vanishes fails its sockets (packet(7)).
			e.hasFailed = true
		}
	}
}

// close closes the socket.
func (e *tap) close() {
	if e.fd >= 0 {
		rt.CloseFile(e.fd)
	}
}

// waitForFrame waits until a frame or an error arrives at one of the taps, at most this long.
func waitForFrame(taps []*tap, longest time.Duration) {
	var fds [2 * protocolCount]unix.PollFd // no allocation for one or two links
	waiting := fds[:0]
	for _, e := range taps {
		if !e.hasFailed {
			waiting = append(waiting, unix.PollFd{Fd: int32(e.fd), Events: unix.POLLIN})
		}
	}

	rt.Poll(waiting, longest)
}
