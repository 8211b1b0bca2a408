package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/conntrack"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	"github.com/holdfast-lb/holdfast/internal/loop"
	"github.com/holdfast-lb/holdfast/internal/members"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/relay"
	"github.com/holdfast-lb/holdfast/internal/report"
)

// syncer is one run of the speaker: read, plan, Set. It never waits for the
// API server: that is for the report.
type syncer struct {
	node    string
	options config.Options
	log     *slog.Logger
	loop    *loop.Loop
	// Where the state comes from.
	cluster    *k8s.Cluster
	links      *link.Monitor
	membership *membership
	liveness   *liveness.Monitor
	boot       *kubeproxy.Boot
	// Where the plan goes to.
	filter    *guard
	relay     *relay.Relayer
	layer2    *layer2.Responder
	bgp       *bgp.Speaker
	conntrack *conntrack.Sweeper
	report    *report.Reporter

	last atomic.Pointer[planned]
	// leaving: the uninstall mark was obeyed, at least in part; gone: in all.
	leaving bool
	gone    atomic.Bool
	// ended has the error that ends the process, so that kubelet starts the next one.
	ended chan error
	// stopping: this speaker has been told to stop, and leaves what it announces to
	// the others; saidGoodbye: there was a plan since, and the others were told.
	stopping, saidGoodbye atomic.Bool
}

// planned is the outcome of one run.
type planned struct {
	Plan plan.Plan
	// Epoch of the heartbeats that it was made in.
	Epoch    uint64
	Members  map[string]bool
	Problems []lb.Problem
}

// inputs are what one run decides by, beside what the other speakers say.
type inputs struct {
	links []link.Link
	// state has what the API server says. What it said last holds for as long as it says nothing else.
	state lb.State
	// speakers are the addresses of the nodes that have one.
	speakers map[string]netip.Addr
	// stopping: this speaker is to leave what it announces to others.
	stopping bool
}

// sync reads, plans, and hands every part its whole desired set.
func (w *syncer) sync(context.Context) (again time.Duration, err error) {
	if !w.cluster.Synced() || !w.links.Synced() {
		return 0, nil // each of these kicks when it is there
	}
	if w.cluster.Uninstalling() {
		return 0, w.leave()
	}
	if w.leaving {
		select {
		case w.ended <- errMarkOff: // BGP, for one, has left for good
		default: // it is ending already
		}
		return 0, nil
	}
	in := w.read(w.links.Links())
	m := w.membership.members.Load()
	if m == nil {
		return 0, w.filterOnly(in)
	}
	view, metadata := w.participate(m, in)
	if !view.Settled {
		return 0, w.filterOnly(in) // it kicks when the others have had the time to send their metadata
	}
	again, err = w.run(in, view, metadata)
	m.Confirm(view)
	w.saidGoodbye.Store(in.stopping)
	w.conntrack.Set(w.lostEndpoints(in.speakers, view.Alive))
	return again, err
}

// read compiles what the API server says, and the links; the controller says what is wrong with it.
func (w *syncer) read(links []link.Link) inputs {
	state, _ := config.Compile(w.cluster.Objects(), w.options)
	state.Here.Addresses = link.Addresses(links)
	return inputs{links, state, w.cluster.SpeakerAddresses(), w.stopping.Load()}
}

// participate sends the other speakers what they have to know of this one, and returns what is known of them.
func (w *syncer) participate(m *members.Members, in inputs) (members.View, map[string]lb.Member) {
	m.SetSpeakers(in.speakers)
	view := m.View()
	if !m.Joined() {
		return members.View{}, nil
	}
	if view.Settled {
		m.SetSelf(w.self(in.links, in.stopping))
	}
	metadata := m.Metadata()
	w.liveness.Set(liveness.Known{View: view, Members: metadata, Speakers: in.speakers, Address: m.Address(), Services: in.state.Services})
	return view, metadata
}

// run plans by what is known, and has every part do it. It returns when another plan is due.
func (w *syncer) run(in inputs, view members.View, metadata map[string]lb.Member) (again time.Duration, err error) {
	around := w.liveness.State()
	state := w.complete(in, view.Epoch, around, metadata)
	p, err := w.apply(in, state, macsOf(metadata))
	w.liveness.SetOwners(p.Owners)
	problems := slices.Concat(w.filter.problems(in.links), w.unfitProblems(), around.Problems)
	w.settle(&planned{p, view.Epoch, state.Members, problems})
	w.report.Set(&report.Outcome{Verdicts: p.Verdicts, Speakers: len(state.Members), Problems: problems})
	return sooner(around.Again, relaysEnd(p.Relays, state.Now)), err
}

// complete adds to what the API server says all else that a plan depends on.
func (w *syncer) complete(in inputs, epoch uint64, around liveness.State, metadata map[string]lb.Member) lb.State {
	s := in.state
	s.Now = time.Now()
	s.Members, s.HeldDown, s.SpeakerDown, s.Left = around.Alive, around.HeldDown, around.SpeakerDown, around.Left
	s.Stopping = w.cluster.StoppingSpeakers()
	applyMembers(&s, metadata)
	if in.stopping {
		s.Stopping[w.node] = true
	}
	before := w.last.Load()
	s.Here.HearsBadly, s.Here.CutOffFrom, s.Here.Partition = around.HearsBadly, around.CutOffFrom, around.Partition
	if s.Here.CutOffFrom != nil {
		s.Here.Announced = before.plan().Announced()
	}
	if s.Here.Previous = before.of(epoch); s.Here.Previous == nil {
		s.Here.Inherited = w.relay.Inherited()
	}
	s.Here.Unfiltered = w.filter.failed()
	return s
}

// apply plans and has every sink do it: the filter first, since
// kube-proxy may know an address already, and a client any node's MAC.
func (w *syncer) apply(in inputs, state lb.State, macs map[link.MAC]bool) (plan.Plan, error) {
	before := w.last.Load().plan()
	p := plan.ForNode(w.node, state)
	var withdrawn error
	if stays, less := before.Staying(p); less {
		withdrawn = w.announce(stays, macs)
	}
	closed := w.filter.set(p, relayed(p.Relays), state.Nodes[w.node], in.links)
	if failed := w.filter.failed(); failed != state.Here.Unfiltered {
		state.Here.Unfiltered = failed
		p = plan.ForNode(w.node, state)
		w.loop.Kick() // the others are to know
	}
	if closed != nil && !state.Here.Unfiltered {
		p = p.Waiting(before)
	}
	// Before traffic is attracted.
	w.relay.Set(relay.Desired{Relays: p.Relays, Expect: len(p.Owners) > 0, Speakers: macs})
	return p, errors.Join(withdrawn, closed, w.announce(p, macs))
}

// filterOnly is for as long as the others are not known: nothing is announced yet, and
// the kernel goes on relaying what it does.
func (w *syncer) filterOnly(in inputs) error {
	inherited := slices.SortedFunc(maps.Keys(w.relay.Inherited()), netip.Addr.Compare)
	return w.filter.set(plan.ForNode(w.node, in.state), inherited, in.state.Nodes[w.node], in.links)
}

// lostEndpoints returns those on nodes whose speakers are not heard.
func (w *syncer) lostEndpoints(speakers map[string]netip.Addr, alive map[string]bool) map[netip.Addr]bool {
	missed := map[string]bool{}
	for node := range speakers {
		if !alive[node] {
			missed[node] = true
		}
	}
	if len(missed) == 0 {
		return nil // which is the rule, and costs nothing
	}
	objects := w.cluster.Objects()
	return w.options.LostEndpoints(objects.Services, objects.EndpointSlices, missed)
}

// settle makes a run the last one.
func (w *syncer) settle(now *planned) {
	before := w.last.Load()
	w.logChanges(before, now.Plan)
	for _, p := range now.Problems {
		if before == nil || !slices.Contains(before.Problems, p) {
			w.log.Warn("node", "reason", p.Reason, "message", p.Message)
		}
	}
	w.last.Store(now)
}

// announce makes the network deliver what the plan says.
func (w *syncer) announce(p plan.Plan, macs map[link.MAC]bool) error {
	w.layer2.Set(layer2.Desired{Announcements: p.Announcements, Yield: p.Yield, Speakers: macs, Owners: p.Sources})
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

// errMarkOff ends a process that withdrew everything and is to announce again.
var errMarkOff = errors.New("the uninstall mark was taken off again: only a new process announces again")

// leave obeys the uninstall mark: withdraw everything, then filter nothing, keep nothing.
func (w *syncer) leave() error {
	if w.gone.Load() {
		return nil
	}
	w.leaving = true
	w.liveness.Set(liveness.Known{})
	w.conntrack.Set(nil)
	w.layer2.Set(layer2.Desired{})
	if err := w.bgp.Leave(); err != nil {
		return fmt.Errorf("withdraw routes: %w", err)
	}
	if err := errors.Join(w.relay.Remove(), w.filter.remove(), kubeproxy.Forget()); err != nil {
		return err
	}
	w.last.Store(nil)
	w.report.Set(nil)
	w.gone.Store(true)
	w.log.Info("uninstalling: everything is withdrawn")
	return nil
}

// ready tells the truth: all informers synced and the first plan applied.
func (w *syncer) ready() error {
	switch {
	case w.gone.Load():
		return errors.New("uninstalling: everything is withdrawn")
	case !w.cluster.Synced():
		return errors.New("informers are not synced")
	case w.membership.members.Load() == nil:
		return errors.New("the membership has not started")
	case w.last.Load() == nil || w.loop.Done() == 0:
		return errors.New("the first plan is not applied")
	}
	return nil
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
			w.log.Info("layer 2", "service", v.Service, "reason", v.L2.Here, "nodes", v.L2.Nodes, "message", v.L2.Message)
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
	}{w.node, w.last.Load(), w.membership.view(), w.links.Links(), w.layer2.State(), w.bgp.Sessions(), w.filter.state(), w.relay.State()}
}
