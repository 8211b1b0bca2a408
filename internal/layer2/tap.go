package layer2

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// tapBatch is how many frames are read at once, so that a flood does not block the caller.
const tapBatch = 4096

// tap is a packet socket of one protocol on one link without a reader goroutine: frames
// wake nobody and wait until the owner receives them.
type tap struct {
	link  lb.Interface
	proto protocol
	fd    int
	frame [maxFrame]byte
	// failed: the link went down or vanished, or the socket could not be opened.
	failed bool
}

// openTap opens a tap for frames that pass the program. If that fails the result has failed set.
func openTap(l lb.Interface, p protocol, program []bpf.Instruction) (*tap, error) {
	e := &tap{link: l, proto: p, fd: -1, failed: true}
	// Protocol 0 receives nothing (packet(7)) until the filter is set.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return e, fmt.Errorf("open %s socket: %w", p.name, err)
	}
	if err := prepareTap(fd, l, p, program); err != nil {
		return e, errors.Join(err, unix.Close(fd))
	}
	e.fd, e.failed = fd, false
	return e, nil
}

func prepareTap(fd int, l lb.Interface, p protocol, program []bpf.Instruction) error {
	if err := attach(fd, p, receivedBy(l.Index, program)); err != nil {
		return err
	}
	enlarge(fd)
	if err := bind(fd, p, l.Index); err != nil {
		return fmt.Errorf("bind %s socket to %s: %w", p.name, l.Name, err)
	}
	return nil
}

// attach sets the program that selects the frames to receive.
func attach(fd int, p protocol, program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("assemble %s filter: %w", p.name, err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
		return fmt.Errorf("filter %s socket: %w", p.name, err)
	}
	return nil
}

// bind begins to receive the protocol's frames on the link with an index.
func bind(fd int, p protocol, index int) error {
	bigEndian := uint16(p.etherType)<<8 | uint16(p.etherType)>>8
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian, Ifindex: index})
}

// unlessFailed returns nil if the tap has failed.
func (e *tap) unlessFailed() *tap {
	if e.failed {
		return nil
	}
	return e
}

// send sends one frame without waiting for a blocked link. It reports whether the frame was sent.
func (e *tap) send(frame []byte) bool {
	taken, err := offer(e.fd, frame)
	e.failed = e.failed || err != nil
	return taken
}

// receive calls handle with each frame that has arrived. The frame is valid only during the call.
func (e *tap) receive(handle func(frame []byte)) {
	for range tapBatch {
		if e.failed {
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
			e.failed = true
		}
	}
}

// lost reports whether frames were dropped since the last call.
func (e *tap) lost() bool {
	if e.failed {
		return false
	}
	stats, err := unix.GetsockoptTpacketStats(e.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	return err == nil && stats.Drops > 0
}

func (e *tap) close() {
	if e.fd >= 0 {
		unix.Close(e.fd)
	}
}

// await waits until a frame or an error arrives at one of the taps, at most this long.
func await(taps []*tap, longest time.Duration) {
	var fds [2 * kinds]unix.PollFd // no allocation for one or two links
	waiting := fds[:0]
	for _, e := range taps {
		if !e.failed {
			waiting = append(waiting, unix.PollFd{Fd: int32(e.fd), Events: unix.POLLIN})
		}
	}
	timeout := unix.NsecToTimespec(int64(longest))
	// A signal may end it early, which does no harm.
	_, _ = unix.Ppoll(waiting, &timeout, nil)
}
