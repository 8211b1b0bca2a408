package nft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// rewatch is the time after which a watch that failed begins again.
const rewatch = time.Second

// watch calls changed when others may have changed the table, until the context ends: own sends the changes of this process.
func (t Table) watch(ctx context.Context, log *slog.Logger, own *Conn, changed func()) {
	for ctx.Err() == nil {
		if err := t.watchOnce(ctx, own, changed); err != nil {
			log.Warn("cannot watch changes of nf_tables", "error", err)
			sleep(ctx, rewatch)
		}
	}
}

func (t Table) watchOnce(ctx context.Context, own *Conn, changed func()) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}
	if err := errors.Join(conn.SetReadBuffer(receiveBuffer), conn.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		return errors.Join(fmt.Errorf("join notifications of nf_tables: %w", err), conn.Close())
	}
	// Changes before the socket joined the group are unknown.
	changed()
	return Receive(ctx, conn, changed, func(m netlink.Message) {
		// The header names the netlink address of the sender of the batch.
		if m.Header.PID != own.port.Load() && t.concerns(m) {
			changed()
		}
	})
}

// Receive calls fn for each message of a connection, and missed when the kernel has dropped messages, until the context
// ends or the connection fails. It closes the connection.
func Receive(ctx context.Context, conn *netlink.Conn, missed func(), fn func(netlink.Message)) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
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
	return m.Header.Type>>8 == unix.NFNL_SUBSYS_NFTABLES && m.Header.Type&0xff != unix.NFT_MSG_NEWGEN && len(m.Data) > HeaderSize && m.Data[0] == t.Family &&
		attributes(m.Data[HeaderSize:]).find(unix.NFTA_TABLE_NAME).text() == t.Name
}
