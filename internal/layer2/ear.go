package layer2

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/link"
)

// earful is how many frames are heard in one go, so that a flood does not hold up who listens.
const earful = 4096

// ear is a packet socket of one protocol on one link, without a reader: nobody is woken
// by what arrives, and what did is heard when its owner listens.
type ear struct {
	link  link.Link
	proto protocol
	fd    int
	frame [maxFrame]byte
	// failed: the link went down or vanished, or the socket could not be opened.
	failed bool
}

// openEar opens an ear for what the program passes. One that could not be opened has failed.
func openEar(l link.Link, p protocol, program []bpf.Instruction) (*ear, error) {
	e := &ear{link: l, proto: p, fd: -1, failed: true}
	// Protocol 0 receives nothing (packet(7)) until the filter is there.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return e, fmt.Errorf("open %s socket: %w", p.family, err)
	}
	if err := prepareEar(fd, l, p, program); err != nil {
		return e, errors.Join(err, unix.Close(fd))
	}
	e.fd, e.failed = fd, false
	return e, nil
}

func prepareEar(fd int, l link.Link, p protocol, program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("assemble %s filter: %w", p.family, err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
		return fmt.Errorf("filter %s socket: %w", p.family, err)
	}
	// As much as is allowed is good enough: beyond net.core.rmem_max needs CAP_NET_ADMIN.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	bigEndian := uint16(p.etherType)<<8 | uint16(p.etherType)>>8
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian, Ifindex: l.Index}); err != nil {
		return fmt.Errorf("bind %s socket to %s: %w", p.family, l.Name, err)
	}
	return nil
}

// unlessFailed returns the ear if it works, else nil.
func (e *ear) unlessFailed() *ear {
	if e.failed {
		return nil
	}
	return e
}

// send sends one frame, without waiting for a link that takes none; it reports whether it could.
func (e *ear) send(frame []byte) bool {
	for {
		switch _, err := unix.Write(e.fd, frame); err {
		case nil:
			return true
		case unix.EINTR:
		case unix.EAGAIN, unix.ENOBUFS:
			return false
		default:
			e.failed = true
			return false
		}
	}
}

// hear calls heard with each frame that has arrived; they are not to be kept.
func (e *ear) hear(heard func(frame []byte)) {
	for range earful {
		if e.failed {
			return
		}
		switch n, err := unix.Read(e.fd, e.frame[:]); err {
		case nil:
			heard(e.frame[:n])
		case unix.EINTR:
		case unix.EAGAIN:
			return
		default:
			// A link that goes down or vanishes fails its sockets (packet(7)).
			e.failed = true
		}
	}
}

// lost reports whether frames did not fit in since it was asked last.
func (e *ear) lost() bool {
	if e.failed {
		return false
	}
	stats, err := unix.GetsockoptTpacketStats(e.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	return err == nil && stats.Drops > 0
}

func (e *ear) close() {
	if e.fd >= 0 {
		unix.Close(e.fd)
	}
}

// await waits until something arrives at one of the ears, or fails it, and no longer than this.
func await(ears []*ear, longest time.Duration) {
	var fds [2 * families]unix.PollFd // of one link or two nothing is allocated
	waiting := fds[:0]
	for _, e := range ears {
		if !e.failed {
			waiting = append(waiting, unix.PollFd{Fd: int32(e.fd), Events: unix.POLLIN})
		}
	}
	timeout := unix.NsecToTimespec(int64(longest))
	// A signal may end it sooner, which is as good.
	_, _ = unix.Ppoll(waiting, &timeout, nil)
}
