package egress

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Times of maintain.
const (
	// syncInterval is the shortest time between two synchronizations, and a readShare-th of the time the longest that
	// reading takes: a routing table may be large and change all the time.
	syncInterval = 50 * time.Millisecond
	readShare    = 10
	// firstRetry and lastRetry bound the time until the next attempt to find the link of a pod. No event reports that
	// a pod behind a bridge got its address.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// maintain synchronizes after changes of links and routes until the context ends. It watches them only while there are
// sources.
func (t *Translator) maintain(ctx context.Context) error {
	var watch watcher
	defer watch.stop()
	wait := firstRetry
	for {
		var retry <-chan time.Time
		if t.needsRetry() {
			retry = time.After(wait)
		}

		select {
		case <-ctx.Done():
			return nil
		case <-t.arrived:
			watch.follow(ctx, t)
			wait = firstRetry
			continue
		case <-t.wake:
			wait = firstRetry
		case <-retry:
			wait = min(2*wait, lastRetry)
		}

		nft.Sleep(ctx, max(syncInterval, readShare*t.resync()))
	}
}

// resync repeats the last Set with the links of this moment. It returns how long it took to read them.
func (t *Translator) resync() (reading time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.desired == nil {
		return 0
	}

	start := time.Now()
	uplinks, v := t.readUplinks(t.desired), t.read()
	reading = time.Since(start)
	t.sync(v, uplinks)
	return reading
}

// needsRetry reports whether links must be read again without an event.
func (t *Translator) needsRetry() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.faults) > 0 || t.unread
}

// hasSources reports whether there are sources.
func (t *Translator) hasSources() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.desired != nil && len(t.desired.Sources) > 0
}

// watcher watches links and routes, or nothing.
type watcher struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// follow starts or stops to watch.
func (w *watcher) follow(ctx context.Context, t *Translator) {
	wanted := t.hasSources()
	switch {
	case wanted && w.cancel == nil:
		ctx, w.cancel = context.WithCancel(ctx)
		w.ended = make(chan struct{})
		go func() {
			defer close(w.ended)
			t.watch(ctx)
		}()
	case !wanted:
		w.stop()
	}
}

// stop stops to watch.
func (w *watcher) stop() {
	if w.cancel != nil {
		w.cancel()
		<-w.ended
		w.cancel = nil
	}
}

// rewatchDelay is the pause before a failed watch starts again.
const rewatchDelay = time.Second

// watch wakes maintain when a link or a route changes, until the context ends.
func (t *Translator) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := t.watchOnce(ctx); err != nil {
			t.config.Log.Warn("cannot watch links and routes", "error", err)
			nft.Sleep(ctx, rewatchDelay)
		}
	}
}

// watchOnce watches until the context ends or the socket fails.
func (t *Translator) watchOnce(ctx context.Context) error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return fmt.Errorf("open rtnetlink: %w", err)
	}

	for _, group := range []uint32{
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	} {
		err = errors.Join(err, conn.JoinGroup(group))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("join notifications of rtnetlink: %w", err), conn.Close())
	}

	// Something may have changed before the socket joined the groups.
	t.wake.Kick()
	return nft.Receive(ctx, conn, t.wake.Kick, func(netlink.Message) { t.wake.Kick() })
}
