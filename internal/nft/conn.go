package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Buffers of the netlink sockets, in bytes. A transaction is one message to the socket, and its default buffer
// is too small for more than some thousand elements ("message too long"). They bound, nothing is set aside.
const (
	sendBuffer    = 512 << 20
	receiveBuffer = 16 << 20
)

// dumpBuffer is the most the kernel fills of a reader's buffer. Hash sets are listed by walking them from the
// start for each buffer full, so a small one costs much.
const dumpBuffer = 32 << 10

// Conn is a connection that transactions are sent by. The zero value opens it when it is needed.
type Conn struct {
	// port is the connection's netlink address, by which notifications name who made a change; 0 while there
	// is none.
	port atomic.Uint32
	fd   int
}

// Commit makes the kernel take a transaction, all of it or nothing. It returns when it is in force.
func (c *Conn) Commit(b *Batch) error {
	if b.last == 0 {
		return nil
	}
	if err := c.open(); err != nil {
		return err
	}
	// Only the last message asks for an acknowledgement: the kernel gives it after the commit, and tells errors
	// unasked.
	b.data[b.last+6] |= unix.NLM_F_ACK
	b.boundary(unix.NFNL_MSG_BATCH_END)
	err := c.exchange(b.data, false, func(attributes) {})
	if err != nil {
		// More may be under way on this connection: the errors of other messages, an acknowledgement.
		err = errors.Join(fmt.Errorf("commit to nf_tables: %w", err), c.Close())
	}
	return err
}

// Commit makes the kernel take a single transaction by a connection of its own.
func (b *Batch) Commit() error {
	var c Conn
	return errors.Join(c.Commit(b), c.Close())
}

func (c *Conn) open() error {
	if c.port.Load() != 0 {
		return nil
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", os.NewSyscallError("socket", err))
	}
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, sendBuffer), setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBuffer))
	name, nameErr := unix.Getsockname(fd)
	if err := errors.Join(err, nameErr); err != nil {
		return errors.Join(fmt.Errorf("set up nf_tables socket: %w", err), unix.Close(fd))
	}
	c.fd = fd
	c.port.Store(name.(*unix.SockaddrNetlink).Pid)
	return nil
}

// setBuffer sets the size of a buffer, past the limit of the system where that is allowed.
func setBuffer(fd, force, option, size int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, size)
}

// Close closes the connection; Commit opens another one.
func (c *Conn) Close() error {
	if c.port.Swap(0) == 0 {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(c.fd))
}

// exchange sends messages and calls fn for each answer, or of a single one.
func (c *Conn) exchange(data []byte, single bool, fn func(attributes)) error {
	if err := unix.Sendto(c.fd, data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buffer := make([]byte, dumpBuffer)
	for done := false; !done; {
		n, _, err := unix.Recvfrom(c.fd, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		if done, err = split(buffer[:n], single, fn); err != nil {
			return err
		}
	}
	return nil
}

// split calls fn for the messages of a datagram, and reports whether they are the last.
func split(data []byte, single bool, fn func(attributes)) (done bool, err error) {
	const generation = 4
	messages, err := syscall.ParseNetlinkMessage(data)
	if err != nil {
		return true, fmt.Errorf("read message: %w", err)
	}
	for _, m := range messages {
		switch {
		case m.Header.Type == unix.NLMSG_DONE:
			return true, nil
		case len(m.Data) < generation:
			return true, errors.New("nf_tables sent a message without a header")
		case m.Header.Type == unix.NLMSG_ERROR:
			if errno := int32(binary.NativeEndian.Uint32(m.Data)); errno != 0 {
				return true, os.NewSyscallError("nf_tables", unix.Errno(-errno))
			}
			return true, nil
		case m.Header.Flags&unix.NLM_F_DUMP_INTR != 0:
			return true, ErrChanged
		}
		fn(m.Data[generation:])
		if single {
			return true, nil
		}
	}
	return false, nil
}
