package filter

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Buffers of the netlink sockets, in bytes. A transaction is one message to the socket, and its default buffer
// is too small for more than some thousand elements ("message too long"). They bound, nothing is set aside.
const (
	sendBuffer    = 512 << 20
	receiveBuffer = 16 << 20
)

// kernel is the connection that transactions are sent by.
type kernel struct {
	conn *netlink.Conn
	// port is the connection's netlink address, by which notifications name who made a change; 0 while there
	// is none.
	port atomic.Uint32
}

// commit makes the kernel take a transaction, all of it or nothing. It returns when it is in force.
func (k *kernel) commit(b *batch) error {
	if err := k.open(); err != nil {
		return err
	}
	err := k.exchange(b)
	if err != nil {
		// More may be under way on this connection: the errors of other messages, an acknowledgement.
		err = errors.Join(err, k.close())
	}
	return err
}

func (k *kernel) open() error {
	if k.conn != nil {
		return nil
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}
	port, err := portOf(conn)
	if err := errors.Join(err, conn.SetWriteBuffer(sendBuffer), conn.SetReadBuffer(receiveBuffer)); err != nil {
		return errors.Join(fmt.Errorf("set up nf_tables socket: %w", err), conn.Close())
	}
	k.conn = conn
	k.port.Store(port)
	return nil
}

// portOf returns a socket's netlink address.
func portOf(c *netlink.Conn) (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var port uint32
	var nameErr error
	err = raw.Control(func(fd uintptr) {
		var sa unix.Sockaddr
		if sa, nameErr = unix.Getsockname(int(fd)); nameErr == nil {
			port = sa.(*unix.SockaddrNetlink).Pid
		}
	})
	return port, errors.Join(err, nameErr)
}

// exchange sends a batch and waits for its end. Only the last message asks for an acknowledgement: the kernel
// gives it after the commit, and tells errors unasked.
func (k *kernel) exchange(b *batch) error {
	messages := make([]netlink.Message, 0, len(b.messages)+2)
	messages = append(messages, boundary(unix.NFNL_MSG_BATCH_BEGIN))
	messages = append(messages, b.messages...)
	messages[len(messages)-1].Header.Flags |= netlink.Acknowledge
	messages = append(messages, boundary(unix.NFNL_MSG_BATCH_END))
	if _, err := k.conn.SendMessages(messages); err != nil {
		return fmt.Errorf("send to nf_tables: %w", err)
	}
	if _, err := k.conn.Receive(); err != nil {
		return fmt.Errorf("commit to nf_tables: %w", err)
	}
	return nil
}

// boundary is the first or last message of a batch; struct nfgenmsg names the subsystem as its resource.
func boundary(typ uint16) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
	}
}

func (k *kernel) close() error {
	if k.conn == nil {
		return nil
	}
	err := k.conn.Close()
	k.conn = nil
	k.port.Store(0)
	return err
}
