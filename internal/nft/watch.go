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

// rewatch is the time after which a watch that failed begins again.
const rewatch = time.Second

// watch calls changed when other processes may have changed the table, until the context ends.
func (t Table) watch(ctx context.Context, log *slog.Logger, changed func()) {
	for ctx.Err() == nil {
		if err := t.watchOnce(ctx, changed); err != nil {
			log.Warn("cannot watch changes of nf_tables", "error", err)
			Sleep(ctx, rewatch)
		}
	}
}

// byOthers passes what tells of changes by other processes, so that changes of one table do not wake who watches the
// others. The kernel sends what one transaction changed, of however many tables, together.
func byOthers() []bpf.RawInstruction {
	const offPID = 12 // in struct nlmsghdr of linux/netlink.h
	loaded := func(n uint32) uint32 { return binary.BigEndian.Uint32(Native(n)) }
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offPID, Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: loaded(^uint32(addresses - 1))},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: loaded(firstAddress), SkipTrue: 1},
		bpf.RetConstant{Val: receiveBuffer},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		panic(err)
	}

	return program
}

func (t Table) watchOnce(ctx context.Context, changed func()) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}

	if err := errors.Join(conn.SetReadBuffer(receiveBuffer), conn.SetBPF(byOthers()), conn.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		return errors.Join(fmt.Errorf("join notifications of nf_tables: %w", err), conn.Close())
	}

	// Changes before the socket joined the group are unknown.
	changed()
	return Receive(ctx, conn, changed, func(m netlink.Message) {
		if t.concerns(m) {
			changed()
		}
	})
}

// Receive calls fn for each message of a connection, and missed when the kernel has dropped messages, until the context
// ends or the connection fails. It closes the connection.
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
