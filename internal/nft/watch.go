package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// rewatchDelay is the pause before a failed watch starts again.
const rewatchDelay = time.Second

// watch calls changed whenever another process may have changed the table. It runs until the context ends.
func (t Table) watch(ctx context.Context, log *slog.Logger, changed func()) {
	for ctx.Err() == nil {
		if err := t.watchOnce(ctx, changed); err != nil {
			log.Warn("cannot watch changes of nf_tables", "error", err)
			Sleep(ctx, rewatchDelay)
		}
	}
}

// foreignChanges returns a socket filter that passes only the changes of other processes. Without it each change of one
// of our tables would wake the watches of the others. The kernel sends all changes of one transaction together.
func foreignChanges() []bpf.RawInstruction {
	const offPID = 12 // in struct nlmsghdr of linux/netlink.h
	// BPF loads big-endian, and the kernel writes the header in native order.
	loaded := func(n uint32) uint32 { return binary.BigEndian.Uint32(Native(n)) }
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offPID, Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: loaded(^uint32(socketAddresses - 1))},
		bpf.JumpIf{
			Cond:     bpf.JumpEqual,
			Val:      loaded(firstAddress),
			SkipTrue: 1,
		},
		bpf.RetConstant{Val: receiveBuffer},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		panic(err)
	}

	return program
}

// watchOnce watches until the context ends or the socket fails.
func (t Table) watchOnce(ctx context.Context, changed func()) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}

	err = errors.Join(
		conn.SetReadBuffer(receiveBuffer),
		conn.SetBPF(foreignChanges()),
		conn.JoinGroup(unix.NFNLGRP_NFTABLES),
	)
	if err != nil {
		return errors.Join(fmt.Errorf("join notifications of nf_tables: %w", err), conn.Close())
	}

	// The table may have changed before the socket joined the group.
	changed()
	return Receive(ctx, conn, changed, func(m netlink.Message) {
		if t.concerns(m) {
			changed()
		}
	})
}

// Receive calls fn for each message of a connection, and missed when the kernel has dropped messages. It returns nil
// when the context ends, and an error when the connection fails. It closes the connection.
func Receive(ctx context.Context, conn *netlink.Conn, missed func(), fn func(netlink.Message)) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	for {
		messages, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			missed()
		case err != nil:
			return fmt.Errorf("receive from netlink: %w", err)
		}

		for _, m := range messages {
			fn(m)
		}
	}
}

// HeaderSize is the size of struct nfgenmsg, which precedes the attributes of a netfilter message.
const HeaderSize = 4

// concerns reports whether a notification is about a change to this table.
func (t Table) concerns(m netlink.Message) bool {
	return m.Header.Type>>8 == unix.NFNL_SUBSYS_NFTABLES &&
		m.Header.Type&0xff != unix.NFT_MSG_NEWGEN &&
		len(m.Data) > HeaderSize &&
		m.Data[0] == t.Family &&
		attributes(m.Data[HeaderSize:]).find(unix.NFTA_TABLE_NAME).text() == t.Name
}
