package node

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/members"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
)

// MembersConfig configures the membership.
type MembersConfig struct {
	// Secret has the keys.
	Secret lb.Key
	// Port is the port of gossip, HeartbeatPort the port of heartbeats.
	Port, HeartbeatPort uint16
	// Interval is the time between two heartbeats.
	Interval time.Duration
	// Ordinary and Command are as heartbeat.Config has them.
	Ordinary bool
	Command  []string
}

// Join starts the membership when its keys and this node's address are known, and takes part until ctx ends.
func (w *Loop) Join(ctx context.Context, c MembersConfig) error {
	if w.sources.Cluster.WaitForSync(ctx) != nil {
		return nil
	}
	follower := &memberKeys{
		cluster: w.sources.Cluster,
		node:    w.node,
		secret:  c.Secret,
		log:     w.log,
	}
	first, address, err := w.awaitMembership(ctx, follower)
	if err != nil {
		return nil // ctx ended while waiting
	}
	w.sinks.Layer2.SetKeys(first.keys)
	w.sources.Membership.version.Store(&first.version)
	streams := daemon.ConnLimiter{Max: 64, MaxPerAddress: 4} // a member opens one every few seconds, for a moment
	m, err := members.New(
		members.Config{
			GossipPort: c.Port,
			Owner:      w.sinks.Owners,
			Admit:      streams.Admit,
			Config: heartbeat.Config{
				Log:      w.log,
				NodeName: w.node,
				Address:  address,
				Port:     c.HeartbeatPort,
				Keys:     first.keys,
				Timers:   detect.Timers{Interval: c.Interval},
				Ordinary: c.Ordinary,
				Command:  c.Command,
				Stderr:   daemon.Stderr,
				Changed:  w.loop.Hurry,
				Ask:      w.sources.Liveness.Ask,
				Guest:    w.sinks.Peering.BFD.Serve,
			},
		},
	)
	if err != nil {
		return fmt.Errorf("start membership: %w", err)
	}
	// Else the others would mistake a restart of the speaker for a boot of the node.
	for _, looked := range []<-chan struct{}{w.sources.Boot.Looked(), w.sources.PodNetwork.Looked()} {
		select {
		case <-looked:
		case <-ctx.Done():
			return nil
		}
	}
	self := w.self(inputs{links: w.sources.Links.Links(), sessions: w.sinks.BGP.Sessions()})
	self.Unfit &^= lb.Unfiltered // the filter may not have been set yet
	w.sources.Membership.start(m, self)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.Run(ctx) })
	group.Go(func() error {
		follower.follow(ctx, first, func(read keySet) error {
			w.sinks.Layer2.SetKeys(read.keys)
			if err := m.SetKeys(read.keys); err != nil {
				return err
			}
			w.sources.Membership.version.Store(&read.version)
			w.sinks.Report.KickState()
			return nil
		})
		return nil
	})
	onLinks := func() []netip.Addr { return link.Addresses(w.sources.Links.Links()) }
	group.Go(func() error {
		return watchAddress(ctx, w.node, address, onLinks, func() []netip.Addr { return w.nodeObject().Own(onLinks()) })
	})
	return group.Wait()
}

// nodeObject compiles the Node object of this node.
func (w *Loop) nodeObject() lb.Node {
	state, _ := config.Compile(config.Objects{Nodes: w.sources.Cluster.Nodes()}, w.options)
	return state.Nodes[w.node]
}

// awaitMembership waits for the membership's keys and for an address of this node, and logs once what it waits for. It
// returns an error only when ctx ends.
func (w *Loop) awaitMembership(
	ctx context.Context,
	from *memberKeys,
) (first keySet, address netip.Addr, err error) {
	logged := ""
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		if !w.sources.Links.Synced() {
			return false, nil
		}
		var why error
		node := w.nodeObject()
		if own := node.Own(link.Addresses(w.sources.Links.Links())); len(own) > 0 {
			address = own[0]
			first, why = from.await(ctx)
		} else {
			why = fmt.Errorf("no link of node %s has an address that is in its status: %v", w.node, node.Addresses)
		}
		if why != nil && why.Error() != logged {
			logged = why.Error()
			w.log.Warn("waiting for what the membership needs", "error", why)
		}
		return why == nil, nil
	})
	return first, address, err
}
