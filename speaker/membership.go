package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/members"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
)

// membership is this speaker's place among all speakers.
type membership struct {
	node string
	log  *slog.Logger
	// members is nil until the membership has started.
	members atomic.Pointer[members.Members]
}

// view returns what is known of the speakers; an empty View before the membership has started.
func (m *membership) view() members.View {
	if members := m.members.Load(); members != nil {
		return members.View()
	}
	return members.View{}
}

// ask asks another speaker about addresses, if the membership has started.
func (m *membership) ask(member string, addrs []netip.Addr, leaves bool) {
	if members := m.members.Load(); members != nil {
		members.Ask(member, addrs, leaves)
	}
}

// alive returns the metadata of all members that live.
func (m *membership) alive() map[string]lb.Member {
	out := map[string]lb.Member{}
	if members := m.members.Load(); members != nil {
		metadata := members.Metadata()
		for name := range members.View().Alive {
			out[name] = metadata[name]
		}
	}
	return out
}

// Valid implements layer2.Lease: it reports whether the node may act on its last plan.
func (m *membership) Valid() bool {
	members := m.members.Load()
	return members != nil && members.Valid()
}

// join starts the membership when its keys and this node's address are known, and takes part until ctx ends.
func (w *syncer) join(ctx context.Context, s settings) error {
	if w.cluster.WaitForSync(ctx) != nil {
		return nil
	}
	follower := &memberKeys{cluster: w.cluster, secret: s.MembersSecret, log: w.log}
	keys, address, err := w.awaitMembership(ctx, follower)
	if err != nil {
		return nil // ctx ended while waiting
	}
	program, err := beside("heartbeat")
	if err != nil {
		return err
	}
	if err := w.layer2.SetKeys(keys); err != nil {
		return err
	}
	m, err := members.New(members.Config{
		Log: w.log, NodeName: w.node, Address: address, Port: uint16(s.membersPort), HeartbeatPort: uint16(s.heartbeatPort),
		Keys: keys, Heartbeat: heartbeat.Timers{Interval: s.heartbeatInterval}, Ordinary: !s.realtime, Kick: w.loop.Hurry,
		HeartbeatCommand: []string{program}, Ask: w.liveness.Ask, Owner: w.owners,
		Guest: w.paths.bfd.Serve,
	})
	if err != nil {
		return fmt.Errorf("start membership: %w", err)
	}
	select {
	case <-w.boot.Looked(): // else the others would mistake a restart of the speaker for a boot of the node
	case <-ctx.Done():
		return nil
	}
	self := w.self(inputs{links: w.links.Links(), sessions: w.bgp.Sessions()})
	self.Unfit &^= lb.Unfiltered // the filter may not have been set yet
	w.tell(m, self)
	w.membership.members.Store(m)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.Run(ctx) })
	group.Go(func() error {
		return follower.follow(ctx, keys, func(keys [][]byte) error { return errors.Join(m.SetKeys(keys), w.layer2.SetKeys(keys)) })
	})
	return group.Wait()
}

// awaitMembership waits for the membership's keys and for an address of this node, and logs once what it waits for. It
// returns an error only when ctx ends.
func (w *syncer) awaitMembership(ctx context.Context, from *memberKeys) (keys [][]byte, address netip.Addr, err error) {
	logged := ""
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		if !w.links.Synced() {
			return false, nil
		}
		state, _ := config.Compile(w.cluster.Objects(), w.options)
		var why error
		if own := state.Nodes[w.node].Own(link.Addresses(w.links.Links())); len(own) > 0 {
			address = own[0]
			keys, _, why = from.look(ctx)
		} else {
			why = fmt.Errorf("no link of node %s has an address that is in its status: %v", w.node, state.Nodes[w.node].Addresses)
		}
		if why != nil && why.Error() != logged {
			logged = why.Error()
			w.log.Warn("waiting for what the membership needs", "error", why)
		}
		return why == nil, nil
	})
	return keys, address, err
}
