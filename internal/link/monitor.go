// Package link provides the links (network interfaces) of this node as a snapshot
// of values, and kicks when it changes.
//
// Events of rtnetlink only wake the Monitor, which then reads the whole state, so
// a lost event does no harm. The package only reads: it never changes a link or an
// address, and it does not know what is announced.
package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Monitor keeps a snapshot of the node's links.
type Monitor struct {
	log  *slog.Logger
	kick func()
	// excluded are name prefixes of links without clients, beside the usual ones.
	excluded []string
	// read returns the present links; a field so that tests can make it fail.
	read func() ([]lb.Interface, error)
	// listen is a field so that tests can break the subscription.
	listen func(ctx context.Context, wake lb.Signal) error
	// rereadInterval bounds how long a change that has no event is not seen: of eBPF programs and sysctls.
	rereadInterval time.Duration
	// settleInterval bounds how often a storm of events causes a read.
	settleInterval time.Duration
	// retryInterval is the wait after a failed read, and between two while there are no events.
	retryInterval time.Duration

	links        atomic.Pointer[[]lb.Interface]
	surroundings atomic.Pointer[Surroundings]
	// wake makes Run read again.
	wake lb.Signal
}

// New returns a Monitor that calls kick, which must not block, after each change. Links whose names begin as excluded
// have no clients.
func New(log *slog.Logger, kick func(), excluded ...string) *Monitor {
	m := &Monitor{
		log: log, kick: kick, excluded: excluded, read: read, listen: listen, wake: lb.NewSignal(),
		rereadInterval: 10 * time.Second,
		settleInterval: 20 * time.Millisecond,
		retryInterval:  time.Second,
	}
	m.surroundings.Store(&Surroundings{})
	return m
}

// Links returns the links as last read, sorted by index. The slice is shared: do not modify it.
func (m *Monitor) Links() []lb.Interface {
	if links := m.links.Load(); links != nil {
		return *links
	}
	return nil
}

// Synced reports whether the links were read at least once.
func (m *Monitor) Synced() bool { return m.links.Load() != nil }

// SetSurroundings says what the cluster knows; without it, names and ports alone decide which links are inside.
func (m *Monitor) SetSurroundings(s Surroundings) {
	if old := m.surroundings.Swap(&s); !slices.Equal(old.Outside, s.Outside) || !slices.Equal(old.Pods, s.Pods) {
		m.wake.Kick()
	}
}

// Run keeps the snapshot current until the context ends.
func (m *Monitor) Run(ctx context.Context) error {
	var events sync.WaitGroup
	defer events.Wait()
	events.Go(func() { m.follow(ctx) })
	reread := time.NewTicker(m.rereadInterval)
	defer reread.Stop()
	for {
		pause := m.settleInterval
		if err := m.update(); errors.Is(err, netlink.ErrDumpInterrupted) {
			m.wake.Kick() // something changed meanwhile
		} else if err != nil {
			m.log.Warn("cannot read links, keeping the last snapshot", "error", err)
			pause = m.retryInterval
			m.wake.Kick()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-reread.C:
		}
	}
}

// update reads the links and kicks if they changed.
func (m *Monitor) update() error {
	links, err := m.read()
	if err != nil {
		return err
	}
	s := m.surroundings.Load()
	for i, l := range links {
		links[i].NoClients = hasPrefix(l.Name, excluded) || hasPrefix(l.Name, m.excluded) || s.inside(l)
	}
	if old := m.links.Load(); old != nil && reflect.DeepEqual(*old, links) {
		return nil
	}
	m.links.Store(&links)
	m.kick()
	return nil
}

// follow wakes Run at each event, and from time to time as long as there are none.
func (m *Monitor) follow(ctx context.Context) {
	for {
		err := m.listen(ctx, m.wake)
		if ctx.Err() != nil {
			return
		}
		m.log.Warn("no link events, reading links periodically", "interval", m.retryInterval, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(m.retryInterval):
			m.wake.Kick()
		}
	}
}

// listen wakes at each event of links, addresses, default routes and routing rules, until the context ends or the
// socket fails.
func listen(ctx context.Context, wake lb.Signal) error {
	socket, err := nl.Subscribe(
		unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_RULE,
		unix.RTNLGRP_IPV6_RULE,
	)
	if err != nil {
		return fmt.Errorf("subscribe to rtnetlink: %w", err)
	}
	defer socket.Close()
	defer context.AfterFunc(ctx, socket.Close)()
	wake.Kick() // for what changed before the subscription
	for {
		// An overrun only loses events (netlink(7), ENOBUFS): reading the state makes up for it.
		events, _, err := socket.Receive()
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("receive from rtnetlink: %w", err)
		}
		if err != nil || slices.ContainsFunc(events, concernsLinks) {
			wake.Kick()
		}
	}
}

// concernsLinks reports whether an event may change what read returns. Of routes only default ones do.
func concernsLinks(event syscall.NetlinkMessage) bool {
	const offPrefixLength = 1 // in struct rtmsg
	isRoute := event.Header.Type == unix.RTM_NEWROUTE || event.Header.Type == unix.RTM_DELROUTE
	return !isRoute || len(event.Data) > offPrefixLength && event.Data[offPrefixLength] == 0
}
