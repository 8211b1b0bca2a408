package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"
)

// Buffer sizes of the netlink sockets, in bytes. A transaction is one message to the socket, and the default buffer
// holds only a few thousand elements ("message too long"). The sizes are limits and reserve no memory.
const (
	sendBuffer    = 512 << 20
	receiveBuffer = 16 << 20
)

// dumpBuffer is the largest part of a reader's buffer that the kernel fills. For each bufferful the kernel walks a
// hash set from its start, so a small buffer is slow.
const dumpBuffer = 32 << 10

// Every socket of this process binds a netlink address of one range, beyond the addresses that the kernel chooses. A
// notification carries the address of the socket that made the change, so a watch can skip this process' own changes.
const socketAddresses = 1 << 12

var (
	firstAddress  = 1<<30 + socketAddresses*rand.Uint32N(1<<18)
	socketsOpened atomic.Uint32
)

// Conn sends transactions. The zero value is ready for use: it opens a socket on the first Commit.
type Conn struct {
	socket *socket.Conn
	// buffer receives replies.
	buffer []byte
}

// Commit sends a transaction and returns when the kernel has applied all of it. On an error the kernel applied nothing.
func (c *Conn) Commit(b *Batch) error {
	if err := c.open(); err != nil {
		return err
	}

	// Only the last message asks for an acknowledgement: the kernel sends it after the commit, and sends errors
	// without a request.
	b.data[b.last+6] |= unix.NLM_F_ACK
	b.boundary(unix.NFNL_MSG_BATCH_END)

	if err := c.exchange(b.data, false, func(attributes) {}); err != nil {
		// The socket may still receive an acknowledgement, which the next exchange would take for its own.
		return errors.Join(fmt.Errorf("commit to nf_tables: %w", err), c.Close())
	}

	return nil
}

// Commit sends a single transaction over a connection of its own.
func (b *Batch) Commit() error {
	var c Conn
	return errors.Join(c.Commit(b), c.Close())
}

// open opens the socket unless it is open.
func (c *Conn) open() error {
	if c.socket != nil {
		return nil
	}

	s, err := socket.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER, "nf_tables", nil)
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}

	err = unix.EADDRINUSE
	for errors.Is(err, unix.EADDRINUSE) {
		address := firstAddress + socketsOpened.Add(1)%socketAddresses
		err = s.Bind(&unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: address})
	}

	err = errors.Join(
		err,
		s.SetsockoptInt(unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1), // acknowledgements do not repeat the message
		s.SetWriteBuffer(sendBuffer),
		s.SetReadBuffer(receiveBuffer),
	)
	if err != nil {
		return errors.Join(fmt.Errorf("set up nf_tables socket: %w", err), s.Close())
	}

	c.socket = s
	return nil
}

// Close closes the socket. A later Commit opens another socket.
func (c *Conn) Close() error {
	if c.socket == nil {
		return nil
	}

	defer func() { c.socket = nil }()
	return c.socket.Close()
}

// exchange sends messages and calls fn for each reply. With single it returns after the first reply.
func (c *Conn) exchange(data []byte, single bool, fn func(attributes)) error {
	ctx := context.Background()
	err := c.socket.Sendto(ctx, data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err != nil {
		return err
	}

	if c.buffer == nil {
		c.buffer = make([]byte, dumpBuffer)
	}

	for done := false; !done; {
		n, _, err := c.socket.Recvfrom(ctx, c.buffer, 0)
		if err != nil {
			return err
		}

		done, err = parseReplies(c.buffer[:n], single, fn)
		if err != nil {
			return err
		}
	}

	return nil
}

// parseReplies calls fn for each message of a datagram, and reports whether the exchange is complete. It returns
// ErrChanged if a transaction interrupted the listing.
func parseReplies(data []byte, single bool, fn func(attributes)) (done bool, err error) {
	messages, err := syscall.ParseNetlinkMessage(data)
	if err != nil {
		return true, fmt.Errorf("read message: %w", err)
	}

	for _, m := range messages {
		switch {
		case m.Header.Type == unix.NLMSG_DONE:
			return true, nil
		case len(m.Data) < HeaderSize:
			return true, errors.New("nf_tables sent a message without a header")
		case m.Header.Type == unix.NLMSG_ERROR:
			return true, replyError(m.Data)
		case m.Header.Flags&unix.NLM_F_DUMP_INTR != 0:
			return true, ErrChanged
		}

		fn(m.Data[HeaderSize:])
		if single {
			return true, nil
		}
	}

	return false, nil
}

// replyError returns the error of an NLMSG_ERROR message (struct nlmsgerr of linux/netlink.h); nil for a success.
func replyError(data []byte) error {
	errno := unix.Errno(-int32(binary.NativeEndian.Uint32(data)))
	if errno == 0 {
		return nil
	}
	return os.NewSyscallError("nf_tables", errno)
}
