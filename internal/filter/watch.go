package filter

import (
	"context"
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// watch tells heal of changes to the table that are not ours, as nf_tables itself tells them, until the
// context ends.
func (t *Table) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := t.listen(ctx); err != nil {
			t.log.Warn("changes of nf_tables are not heard", "err", err)
			rest(ctx, t.timers.RetryInterval)
		}
	}
}

// listen reads notifications until the context ends or the socket fails.
func (t *Table) listen(ctx context.Context) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := errors.Join(conn.SetReadBuffer(receiveBuffer), conn.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	// What happened before we listened is unknown.
	t.hurt(doubtful)
	for {
		messages, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			t.hurt(doubtful)
			continue
		case err != nil:
			return err
		}
		for _, m := range messages {
			t.hurt(t.damageBy(m))
		}
	}
}

// hurt wakes heal if there is damage.
func (t *Table) hurt(d damage) {
	if d == unharmed {
		return
	}
	for {
		was := t.damage.Load()
		if int32(d) <= was || t.damage.CompareAndSwap(was, int32(d)) {
			break
		}
	}
	t.kick()
}

// damageBy says what a notification means for the table. It names the netlink address of who made the change.
func (t *Table) damageBy(m netlink.Message) damage {
	const generation = 4
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) <= generation || m.Data[0] != unix.NFPROTO_INET ||
		m.Header.PID == t.kernel.port.Load() {
		return unharmed
	}
	typ := int(m.Header.Type & 0xff)
	switch typ {
	case unix.NFT_MSG_NEWGEN:
		return unharmed
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		if t.ours(m.Data[generation:]) {
			return edited
		}
	default:
		if t.ours(m.Data[generation:]) {
			return broken
		}
	}
	return unharmed
}

// ours reports whether attributes begin with the name of our table, as those of every object do.
func (t *Table) ours(attributes []byte) bool {
	ad, err := decoder(attributes)
	return err == nil && ad.Next() && ad.Type() == unix.NFTA_TABLE_NAME && ad.String() == tableName
}
