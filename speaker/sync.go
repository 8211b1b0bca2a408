package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/members"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/relay"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// syncer is one run of the speaker: read, plan, Set. It never waits for the
// API server: statuses are the reporter's.
type syncer struct {
	node    string
	options config.Options
	log     *slog.Logger
	cluster *k8s.Cluster
	links   *link.Monitor
	layer2  *layer2.Responder
	bgp     *bgp.Speaker
	filter  *guard
	relay   *relay.Relayer
	// members is set when the membership has started.
	members atomic.Pointer[members.Members]
	// aside returns the nodes that this side of a partition stands aside for.
	aside func() []string
	// kick runs it again.
	kick func()
	// planned is called after each run.
	planned func()
	last    atomic.Pointer[planned]
	gone    atomic.Bool
	// stopping: this speaker has been told to stop, and leaves what it announces to
	// the others; saidGoodbye: there was a plan since, and the others were told.
	stopping, saidGoodbye atomic.Bool
	goodbyes              goodbyes
	// relaysEnd kicks when the next relay ends.
	relaysEnd *time.Timer
}

// planned is the outcome of one run.
type planned struct {
	Plan plan.Plan
	// Epoch of the heartbeats that it was made in.
	Epoch    uint64
	Members  map[string]bool
	Problems []lb.Problem
	Services []*corev1.Service `json:"-"`
}

// sync plans and hands every sink its whole desired set: the filter first, since
// kube-proxy may know an address already, and a client any node's MAC.
func (w *syncer) sync(context.Context) error {
	if !w.cluster.Synced() || !w.links.Synced() {
		return nil // each of these kicks when it is there
	}
	if w.cluster.Uninstalling() {
		return w.leave()
	}
	links := w.links.Links()
	objects := w.cluster.Objects()
	state, _ := config.Compile(objects, w.options) // the controller says what is wrong
	state.Here.Addresses = link.Addresses(links)
	m := w.members.Load()
	if m == nil {
		return w.filter.set(plan.ForNode(w.node, state), state.Nodes[w.node], links)
	}
	m.SetSpeakers(w.cluster.SpeakerAddresses())
	view := m.View()
	if !m.Joined() || !view.Settled {
		// It kicks when the others have had the time to tell.
		return w.filter.set(plan.ForNode(w.node, state), state.Nodes[w.node], links)
	}
	stopping := w.stopping.Load()
	state.Members, state.HeldDown, state.Mute = view.Alive, view.HeldDown, view.Mute
	standAside(w.aside(), &state)
	m.SetSelf(ourselves(links, stopping))
	state.Stopping = w.cluster.StoppingSpeakers()
	told := m.Told()
	speakers := hear(told, &state)
	state.Now = time.Now()
	state.Left = w.goodbyes.left(state.Now, told, view.Alive, w.kick)
	if stopping {
		state.Stopping[w.node] = true
	}
	before := w.last.Load()
	state.Here.Before = before.of(view.Epoch)
	if state.Here.Before == nil {
		state.Here.Inherited = w.relay.Inherited()
	}
	p := plan.ForNode(w.node, state)
	var withdrawn error
	if stays, less := before.plan().Staying(p); less {
		withdrawn = w.announce(stays, speakers)
	}
	closed := w.filter.set(p, state.Nodes[w.node], links)
	if w.filter.failed() {
		state.Here.Unfiltered = true
		p = plan.ForNode(w.node, state)
	} else if closed != nil {
		p = p.Waiting(before.plan())
	}
	w.handOn(p, state.Now, speakers) // before anybody is told to come here
	err := w.announce(p, speakers)
	m.Confirm(view)
	w.logChanges(before, p)
	w.last.Store(&planned{p, view.Epoch, state.Members, w.filter.problems(links), objects.Services})
	w.saidGoodbye.Store(stopping)
	w.planned()
	return errors.Join(withdrawn, closed, err)
}

// announce makes the network deliver what the plan says.
func (w *syncer) announce(p plan.Plan, speakers map[link.MAC]bool) error {
	w.layer2.Set(layer2.Desired{Announcements: p.Announcements, Elsewhere: p.Elsewhere, Speakers: speakers})
	if err := w.bgp.Set(bgp.Desired{RouterID: p.RouterID, Peers: p.Peers, Routes: p.Routes}); err != nil {
		return fmt.Errorf("set BGP: %w", err)
	}
	return nil
}

// plan is the plan of a run, an empty one before the first.
func (p *planned) plan() plan.Plan {
	if p == nil {
		return plan.Plan{}
	}
	return p.Plan
}

// leave obeys the uninstall mark: withdraw everything, then filter nothing, keep nothing.
func (w *syncer) leave() error {
	if w.gone.Load() {
		return nil
	}
	w.layer2.Set(layer2.Desired{})
	if err := w.bgp.Leave(); err != nil {
		return fmt.Errorf("withdraw routes: %w", err)
	}
	if err := errors.Join(w.relay.Remove(), w.filter.remove()); err != nil {
		return err
	}
	w.last.Store(nil)
	w.gone.Store(true)
	w.log.Info("uninstalling: everything is withdrawn")
	return nil
}

// ready tells the truth: all informers synced and the first plan applied.
func (w *syncer) ready(runs int64) error {
	switch {
	case w.gone.Load():
		return errors.New("uninstalling: everything is withdrawn")
	case !w.cluster.Synced():
		return errors.New("informers are not synced")
	case w.members.Load() == nil:
		return errors.New("the membership has not started")
	case w.last.Load() == nil || runs == 0:
		return errors.New("the first plan is not applied")
	}
	return nil
}

// runMembers starts the membership as soon as the cluster shows what it needs,
// and takes part until ctx ends.
func (w *syncer) runMembers(ctx context.Context, s settings, kick func()) error {
	if w.cluster.WaitForSync(ctx) != nil {
		return nil
	}
	keys, address, err := w.membership(ctx, s)
	if err != nil {
		return nil // ctx ended while waiting
	}
	m, err := members.New(members.Config{
		Log: w.log, NodeName: w.node, Address: address, Port: uint16(s.membersPort), HeartbeatPort: uint16(s.heartbeatPort),
		Keys: keys, Heartbeat: heartbeat.Timers{Interval: s.heartbeatInterval}, Ordinary: !s.realtime, Kick: kick,
	})
	if err != nil {
		return fmt.Errorf("start membership: %w", err)
	}
	m.SetSelf(ourselves(w.links.Links(), false))
	w.members.Store(m)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.Run(ctx) })
	group.Go(func() error { return w.followKeys(ctx, m, s.MembersSecret, keys) })
	return group.Wait()
}

// membership waits for the members' key and for an address of this node, saying
// once what it waits for. It returns an error only when ctx ends.
func (w *syncer) membership(ctx context.Context, s settings) (keys [][]byte, address netip.Addr, err error) {
	said := ""
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		state, _ := config.Compile(w.cluster.Objects(), w.options)
		var why error
		if addresses := state.Nodes[w.node].Addresses; len(addresses) > 0 {
			address = addresses[0]
			keys, _, why = w.cluster.MembersKeys(ctx, s.MembersSecret)
		} else {
			why = fmt.Errorf("node %s has no address in its status", w.node)
		}
		if why != nil && why.Error() != said {
			said = why.Error()
			w.log.Warn("waiting for what the membership needs", "error", why)
		}
		return why == nil, nil
	})
	return keys, address, err
}

// logChanges writes one line for each Service whose announcement by this node changed.
func (w *syncer) logChanges(before *planned, p plan.Plan) {
	was := map[lb.Key]plan.Verdict{}
	if before != nil {
		for _, v := range before.Plan.Verdicts {
			was[v.Service] = v
		}
	}
	for _, v := range p.Verdicts {
		old := was[v.Service]
		if old.L2.Here != v.L2.Here && v.L2.Selected {
			w.log.Info("layer 2", "service", v.Service, "reason", v.L2.Here, "message", v.L2.Message)
		}
		if old.BGP.Here != v.BGP.Here && v.BGP.Selected {
			w.log.Info("BGP", "service", v.Service, "reason", v.BGP.Here, "message", v.BGP.Message)
		}
	}
}

// debug is what /debug/state shows.
func (w *syncer) debug() any {
	return struct {
		Node     string
		Planned  *planned
		Members  members.View
		Links    []link.Link
		Layer2   any
		Sessions []bgp.Session
		Filter   any
		Relay    relay.State
	}{w.node, w.last.Load(), w.view(), w.links.Links(), w.layer2.State(), w.bgp.Sessions(), w.filter.state(), w.relay.State()}
}
