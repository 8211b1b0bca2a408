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

// damage classifies a change to a table by others, the most severe last. The zero value is no change.
type damage int

const (
	nothing damage = iota
	// missed: notifications were lost, and any change is possible.
	missed
	// elements of its sets changed.
	elements
	// rules changed, or anything else but elements.
	rules
)

// rewatch is the time after which a watch that failed begins again.
const rewatch = time.Second

// watch calls fn for each notification of nf_tables about a change to the table, until the context ends. It ignores the
// changes that own has sent.
func (t Table) watch(ctx context.Context, log *slog.Logger, own *Conn, fn func(damage)) {
	for ctx.Err() == nil {
		if err := t.watchOnce(ctx, own, fn); err != nil {
			log.Warn("cannot watch changes of nf_tables", "error", err)
			sleep(ctx, rewatch)
		}
	}
}

func (t Table) watchOnce(ctx context.Context, own *Conn, fn func(damage)) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}
	if err := errors.Join(conn.SetReadBuffer(receiveBuffer), conn.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		return errors.Join(fmt.Errorf("join notifications of nf_tables: %w", err), conn.Close())
	}
	// Changes before the socket joined the group are unknown.
	fn(missed)
	return Receive(ctx, conn, func() { fn(missed) }, func(m netlink.Message) {
		// The header names the netlink address of the sender of the batch.
		if change, ok := t.changeOf(m); ok && m.Header.PID != own.port.Load() {
			fn(change)
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

// changeOf classifies a notification; false if it is not about a change to this table.
func (t Table) changeOf(m netlink.Message) (damage, bool) {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) <= HeaderSize || m.Data[0] != t.Family {
		return 0, false
	}
	typ := m.Header.Type & 0xff
	if typ == unix.NFT_MSG_NEWGEN {
		return 0, false
	}
	if attributes(m.Data[HeaderSize:]).find(unix.NFTA_TABLE_NAME).text() != t.Name {
		return 0, false
	}
	if typ == unix.NFT_MSG_NEWSETELEM || typ == unix.NFT_MSG_DELSETELEM {
		return elements, true
	}
	return rules, true
}
