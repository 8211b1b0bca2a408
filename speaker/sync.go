package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/divert"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/kernel"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	"github.com/holdfast-lb/holdfast/internal/peering"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/podnetwork"
	"github.com/holdfast-lb/holdfast/internal/relay"
	"github.com/holdfast-lb/holdfast/internal/report"
)

// syncer is the loop "plan": one sync reads the State from all sources, plans, and gives the plan to all sinks. It
// never waits for the API server, to which only report writes.
type syncer struct {
	node    string
	options config.Options
	log     *slog.Logger
	loop    *daemon.Loop
	sources
	sinks
	objects
	stops

	localServices localServices
	memberFacts   *memberFacts
	// memory makes the plans.
	memory plan.Memory
	// newcomers are the new addresses of the last plan, before the other speakers are known too.
	newcomers lb.Newcomers
	// last is the result of the last run; nil before the first.
	last atomic.Pointer[planned]
}

// sources are what a run reads.
type sources struct {
	cluster    *k8s.Cluster
	links      *link.Monitor
	membership *membership
	liveness   *liveness.Monitor
	prober     *daemon.Loop
	boot       *kubeproxy.Boot
	podNetwork *podnetwork.Boot
	endpoints  *kubeproxy.Endpoints
	proxies    *divert.Asker
	kernel     *kernel.Monitor
}

// sinks are what a run sets.
type sinks struct {
	filter *guard
	relays *relays
	divert *divert.Table
	// outgoing translates the connections that pods open to the outside.
	outgoing *outgoing
	layer2   *layer2.Responder
	owners   *owners
	bgp      *bgp.Speaker
	peering  *peering.Peering
	// headstart serves the addresses of newcomers until kube-proxy does.
	headstart *kubeproxy.HeadStart
	conntrack *kubeproxy.Sweeper
	report    *report.Reporter
}

// objects are what the API server says.
type objects struct {
	// compiler reads the objects. compiled is what they say, as of version.
	compiler config.Compiler
	compiled lb.State
	version  uint64
}

// stops are the ways in which this speaker ends, or hands its addresses over.
type stops struct {
	// withdrawing reports whether the uninstall mark was seen, and withdrawn whether everything is withdrawn.
	withdrawing bool
	withdrawn   atomic.Bool
	// markRemoved ends the process, so that the kubelet starts a new one.
	markRemoved lb.Signal
	// stopping reports whether this speaker was ordered to stop. saidGoodbye reports whether it has planned everything
	// since, so that the other speakers know.
	stopping, saidGoodbye atomic.Bool
	hang                  *hang
	// hung reports whether a run hung, and no later plan has handed the addresses over yet.
	hung atomic.Bool
}

// planFactor is as daemon.LoopConfig.BurstFactor says: with 10,000 Services a burst is planned three to five times a
// second.
const planFactor = 200

// planned is the result of one run.
type planned struct {
	report.Standing
	// Epoch of the verdicts on which the plan is based.
	Epoch uint64
	// Goodbye is what routers hear if the speaker is ordered to stop now; "" if the speaker alone is to stop.
	Goodbye string
}

// inputs are what one run reads from all sources but the membership.
type inputs struct {
	links []lb.Interface
	// state has the objects of the API server, and the addresses of this node's links. While the API server is away, it
	// has the last objects.
	state lb.State
	// sessions are the BGP sessions. This node reports to the other speakers and to the API server from the same list.
	sessions []lb.Session
	// stopping reports whether this speaker hands its addresses over.
	stopping bool
}

// sync is one run. It only filters until the other speakers are known.
func (w *syncer) sync(context.Context) (again time.Duration, err error) {
	isSynced := w.cluster.Synced() &&
		w.links.Synced() &&
		w.kernel.Checked()
	if !isSynced {
		return 0, nil // each of them kicks when it has synced
	}
	if w.cluster.Uninstalling() {
		return 0, w.withdraw()
	}

	if w.withdrawing {
		w.markRemoved.Kick() // BGP, for example, does not start again in this process
		return 0, nil
	}

	in := w.read(w.links.Links())
	w.observe(in)
	pods, areKnown := w.proxyPods(in.state.ProxyPods)
	if !areKnown {
		return 0, nil // their answer kicks
	}

	in.state.ProxyPods = pods
	if !w.membership.Ready() {
		return 0, w.filterOnly(in) // the membership kicks when it is
	}

	view := w.membership.view()
	if view.Settled {
		w.membership.send(w.self(in))
	}

	metadata := w.membership.metadata()
	w.liveness.Set(liveness.Known{
		View:     view,
		Members:  metadata,
		Speakers: in.state.Speakers,
		Address:  w.membership.address(),
		Services: in.state.Services,
	})
	if !view.Settled {
		return 0, w.filterOnly(in) // the membership kicks once the other speakers had time to send their metadata
	}

	again, err = w.run(in, view, metadata)
	isWhole := !w.memory.IsLate()
	if isWhole {
		w.membership.confirm(view)
	}
	w.saidGoodbye.Store(in.stopping && isWhole)
	return again, err
}

// read reads the links, and compiles the objects of the API server if they changed: the death of a node changes no
// object, and its addresses must not wait. The controller reports the Problems of objects.
func (w *syncer) read(links []lb.Interface) inputs {
	version := w.cluster.Version()
	if version != w.version {
		w.compiled, _ = w.compiler.Compile(w.cluster.Objects(), w.options)
		w.version = version
	}

	state := w.compiled
	state.Here.Addresses = link.Addresses(links)
	state.Speakers = w.cluster.SpeakerAddresses()
	state.Here.Newcomers = w.newcomers
	return inputs{
		links:    links,
		state:    state,
		sessions: w.bgp.Sessions(),
		stopping: w.stopping.Load() || w.hung.Load(),
	}
}

// observe sets what the sources watch: no other step between the objects and the plan sets anything.
func (w *syncer) observe(in inputs) {
	w.links.SetSurroundings(surroundings(in.state, w.node))
	here, _ := w.splitProxies(in.state.ProxyPods)
	w.proxies.Set(here)
	w.endpoints.Set(w.healthPorts(in))
	w.membership.observe(in.state.Speakers, func(own netip.Addr) []heartbeat.Link { return frameLinks(in, own) })
}

// filterOnly sets the filter and nothing else: this node announces nothing yet, and its kernel goes on with the relays
// of an earlier run.
func (w *syncer) filterOnly(in inputs) error {
	in.state.Now = time.Now()
	p := plan.ForNode(w.node, in.state)
	w.newcomers = p.Newcomers
	node := in.state.Nodes[w.node]
	return w.filter.set(p, w.relays.lasting(), node, in.links)
}

// linksChanged makes a plan. It does so at once if a link is gone that the other speakers know: its addresses must not
// wait for the pause in a burst.
func (w *syncer) linksChanged(links []lb.Interface) {
	present, sent := localMember(links, nil, nil), w.membership.sent.Load()
	isGone := func(l lb.Link) bool {
		return !slices.ContainsFunc(present.Links, func(p lb.Link) bool {
			return p.Name == l.Name
		})
	}
	if sent != nil && slices.ContainsFunc(sent.Links, isGone) {
		w.loop.Hurry()
	}

	w.loop.Kick()
}

// run completes the State, plans by it, and gives the plan to all sinks. It returns when the next plan is due.
func (w *syncer) run(
	in inputs,
	view detect.NodeSets,
	metadata map[string]lb.Member,
) (again time.Duration, err error) {
	live := w.liveness.State()
	w.memberFacts = newMemberFacts(metadata, w.memberFacts)
	state := w.complete(in, view, live)
	w.owners.heldDown.Store(state.HeldDown[w.node] || live.HearsBadly || live.GivenUp)
	p, err := w.apply(in, state, w.memberFacts.macs)
	w.newcomers = p.Newcomers
	w.liveness.SetOwners(p.Owners)
	done := &planned{
		Standing: report.Standing{
			Plan:     p,
			Members:  state.Members,
			Problems: append(w.problems(in.links), live.Problems...),
			Closings: w.outgoing.closings(),
			Sessions: in.sessions,
		},
		Epoch:   view.Epoch,
		Goodbye: goodbye(state.Nodes[w.node], p),
	}
	w.logChanges(w.last.Load(), done)
	w.last.Store(done)
	if in.stopping && w.hung.Swap(false) {
		w.loop.Kick()
	}

	if w.memory.IsLate() {
		w.loop.Hurry() // the next run plans the rest
	}

	w.report.Set(done.Standing)
	again = live.Again
	ends := lb.Sooner(lb.Sooner(p.RelaysEnd, p.Withdraws), p.Newcomers.Ends())
	if !ends.IsZero() {
		again = daemon.Sooner(again, max(ends.Sub(state.Now), time.Millisecond))
	}

	return again, err
}

// complete adds to the State what is known from all sources but the API server.
func (w *syncer) complete(
	in inputs,
	view detect.NodeSets,
	live liveness.State,
) lb.State {
	s := in.state
	s.Now = time.Now()
	s.Members = live.Alive
	s.HeldDown = live.HeldDown
	s.SpeakerDown = live.SpeakerDown
	s.Left = live.Left
	s.Stopping = w.cluster.StoppingSpeakers()
	w.memberFacts.apply(&s)
	if in.stopping {
		s.Stopping[w.node] = true
	}

	last := w.last.Load()
	s.Here.Hears = view.Alive
	s.Here.HearsBadly = live.HearsBadly
	s.Here.GivenUp = live.GivenUp
	s.Here.PathFails = live.PathFails
	s.Here.CutOffFrom = live.CutOffFrom
	s.Here.Partition = live.Partition
	s.Here.Advertised = last.plan().Advertised
	s.Here.Newer = w.owners.newerOwners()
	if s.Here.CutOffFrom != nil {
		s.Here.Announced = last.plan().Announcements
	}

	s.Here.Previous = last.previous(view.Epoch)
	if s.Here.Previous == nil && w.relays.on {
		s.Here.Inherited = w.relays.inherited()
	}

	s.Here.Unfiltered = w.filter.failed()
	s.Here.Refused = w.filter.refused()
	isBehind := w.owners.contact.API() == lb.APIBehind
	s.Here.EgressLacks = w.outgoing.lacks(!s.Here.Unfiltered, isBehind, w.cluster.APIAge())
	s.Here.Ways = waysOf(in.links)
	s.Here.Unserved = w.unserved()
	return s
}

// apply plans, and sets the sinks in this order: withdraw, filter, relay, serve new addresses, announce. The filter
// comes before the announcements because kube-proxy may serve an address already, and a client may know the MAC of any
// node. Packets that the filter accepts find the way to a proxy of this node at once.
func (w *syncer) apply(
	in inputs,
	state lb.State,
	macs map[lb.MAC]bool,
) (plan.Plan, error) {
	last := w.last.Load().plan()
	p := w.memory.ForNode(w.node, state)
	if !w.relays.on {
		p.Relays = lb.Map[netip.Addr, lb.Relay]{}
		p.RelaysEnd = time.Time{}
	}

	w.conntrack.Relay(p.Relays, state.Now)
	rest, isLess := last.Staying(p)
	if isLess {
		w.announce(in, rest, macs)
	}

	ways := divert.Desired{
		NodePorts:  p.ClosedNodePorts,
		Proxies:    w.ownProxies(state.ProxyPods),
		Diversions: p.Entering(last, false),
	}
	w.divert.Set(ways)
	relayed := w.relays.relayed(p.Relays)
	filterErr := w.filter.set(p, relayed, state.Nodes[w.node], in.links)
	changed := w.filter.failed() != state.Here.Unfiltered ||
		!w.filter.refused().Same(state.Here.Refused)
	if changed {
		w.loop.Hurry() // the next run plans by that, and tells the others
	}

	if (filterErr != nil || changed) && !state.Here.Unfiltered {
		p = p.Waiting(last)
	}

	relayErr := w.relays.set(relay.Desired{
		Relays:   p.Relays,
		Expect:   p.Owners.Len() > 0,
		Speakers: macs,
	})
	// The order lets a connection find a proxy or a head start at every moment.
	ways.Diversions = p.Entering(last, true)
	w.divert.Set(ways)
	w.headstart.Set(w.starts(p.Newcomers.ByService()))
	ways.Diversions = p.Diversions
	w.divert.Set(ways)
	w.endpoints.Ask()
	w.announce(in, p, macs)
	w.conntrack.Set(w.lostEndpoints(p.Lost))
	return p, errors.Join(filterErr, relayErr, w.translate(state, macs))
}

// translate sets the tables of outgoing connections. They stay as an earlier process left them until the pods of this
// node are known.
func (w *syncer) translate(state lb.State, macs map[lb.MAC]bool) error {
	sends := slices.ContainsFunc(state.Services, (*lb.Service).Sends)
	if sends && !w.cluster.EgressSynced() {
		return nil
	}
	return w.outgoing.set(w.memory.Egress(), state, macs)
}

// starts returns where connections to new addresses go. Without the filter only kube-proxy enforces source ranges, so
// no address gets a head start.
func (w *syncer) starts(fresh map[lb.Key][]netip.Addr) []lb.Start {
	if !w.filter.inForce() {
		fresh = nil
	}
	return w.compiler.Starts(fresh, w.node)
}

// announce sets the sinks that attract traffic. It sets none if this run was found to hang: other nodes take over then,
// and the next plan decides which addresses this node has.
func (w *syncer) announce(
	in inputs,
	p plan.Plan,
	macs map[lb.MAC]bool,
) {
	if w.hung.Load() && !in.stopping {
		return
	}

	w.layer2.Set(layer2.Desired{
		Announcements: p.Announcements,
		Yield:         p.Yield,
		Speakers:      macs,
		Owners:        p.Owners,
	})
	w.owners.loop.Kick()

	routes := bgp.Desired{
		RouterID: p.RouterID,
		Peers:    p.Peers,
		Routes:   p.Routes,
	}
	own := w.compiled.Nodes[w.node]
	w.peering.Set(routes, own.Addresses)
}

// lostEndpoints returns the endpoints on lost nodes that cannot serve.
func (w *syncer) lostEndpoints(nodes map[string]bool) map[netip.Addr]bool {
	if len(nodes) == 0 {
		return nil
	}

	return w.compiler.LostEndpoints(nodes)
}

// plan returns the plan of a run; an empty one before the first.
func (p *planned) plan() plan.Plan {
	if p == nil {
		return plan.Plan{}
	}
	return p.Plan
}

// previous returns the plan as the next one in an epoch needs it; nil if that is another epoch.
func (p *planned) previous(epoch uint64) *lb.Previous {
	if p == nil || p.Epoch != epoch {
		return nil
	}
	return &lb.Previous{
		Owners: p.Plan.Owners,
		Relays: p.Plan.Relays,
	}
}

// ready returns nil if all informers have synced, the first plan is applied, and BGP sessions are up or not waited for.
func (w *syncer) ready() error {
	switch {
	case w.withdrawn.Load():
		return errors.New("uninstalling: everything is withdrawn")
	case !w.cluster.Synced():
		return errors.New("informers are not synced")
	case !w.membership.Ready():
		return errors.New("the membership has not started")
	case w.last.Load() == nil, w.loop.Completed() == 0, !w.peering.Applied():
		return errors.New("the first plan is not applied")
	}

	return w.report.Ready(w.cluster.ReadyWithoutSessions(w.node))
}
