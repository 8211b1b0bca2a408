package nft

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Change is what somebody may have done to a table, the worst last. The zero value is nothing.
type Change int

const (
	// Missed: notifications were lost.
	Missed Change = iota + 1
	// Members of its sets changed.
	Members
	// Rules changed, or anything else but members.
	Rules
)

// Watch calls fn for changes to the table that others make, as nf_tables itself tells of them, until the context
// ends or the socket fails. Changes by way of own are not told of.
func (t Table) Watch(ctx context.Context, own *Conn, fn func(Change)) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}
	if err := errors.Join(conn.SetReadBuffer(receiveBuffer), conn.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		return errors.Join(fmt.Errorf("join notifications of nf_tables: %w", err), conn.Close())
	}
	// What happened before we listened is unknown.
	fn(Missed)
	return Receive(ctx, conn, func() { fn(Missed) }, func(m netlink.Message) {
		// The header names the netlink address of the sender of the batch.
		if change, ok := t.changeBy(m); ok && m.Header.PID != own.port.Load() {
			fn(change)
		}
	})
}

// Receive calls fn for what comes by a connection, and missed where the kernel had to drop some, until the context
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
			return fmt.Errorf("receive by netlink: %w", err)
		}
		for _, m := range messages {
			fn(m)
		}
	}
}

// changeBy says what a notification means; false if nothing for this table.
func (t Table) changeBy(m netlink.Message) (Change, bool) {
	const generation = 4
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) <= generation || m.Data[0] != t.Family {
		return 0, false
	}
	typ := m.Header.Type & 0xff
	if typ == unix.NFT_MSG_NEWGEN {
		return 0, false
	}
	if attributes(m.Data[generation:]).find(unix.NFTA_TABLE_NAME).text() != t.Name {
		return 0, false
	}
	if typ == unix.NFT_MSG_NEWSETELEM || typ == unix.NFT_MSG_DELSETELEM {
		return Members, true
	}
	return Rules, true
}
