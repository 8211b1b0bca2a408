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
	"github.com/holdfast-lb/holdfast/internal/node/facts"
	"github.com/holdfast-lb/holdfast/internal/node/owners"
	"github.com/holdfast-lb/holdfast/internal/peering"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/podnetwork"
	"github.com/holdfast-lb/holdfast/internal/relay"
	"github.com/holdfast-lb/holdfast/internal/report"
)

// Loop is the loop "plan" of one node: one sync reads the State from all sources, plans, and gives the plan to all
// sinks. It never waits for the API server, to which only report writes.
type Loop struct {
	node    string
	options config.Options
	log     *slog.Logger
	loop    *daemon.Loop
	sources Sources
	sinks   Sinks
	objects objects
	stops   stops

	localServices facts.LocalServices
	// speakers is the metadata of the last run.
	speakers *facts.Speakers
	// memory makes the plans.
	memory plan.Memory
	// newcomers are the new addresses of the last plan, before the other speakers are known too.
	newcomers lb.Newcomers
	// last is the result of the last run; nil before the first.
	last atomic.Pointer[planned]
}

// Config configures a Loop.
type Config struct {
	Node    string
	Options config.Options
	Log     *slog.Logger
	Sources Sources
	Sinks   Sinks
}

// Sources are what a run reads.
type Sources struct {
	Cluster    *k8s.Cluster
	Links      *link.Monitor
	Membership *Membership
	Liveness   *liveness.Monitor
	Boot       *kubeproxy.Boot
	PodNetwork *podnetwork.Boot
	Endpoints  *kubeproxy.Endpoints
	Proxies    *divert.Asker
	Kernel     *kernel.Monitor
}

// Sinks are what a run sets.
type Sinks struct {
	Filter *Filter
	Relays *Relays
	Divert *divert.Table
	// Outgoing translates the connections that pods open to the outside.
	Outgoing *Outgoing
	Layer2   *layer2.Responder
	Owners   *owners.Inquirer
	BGP      *bgp.Speaker
	Peering  *peering.Peering
	// HeadStart serves the addresses of newcomers until kube-proxy does.
	HeadStart *kubeproxy.HeadStart
	Conntrack *kubeproxy.Sweeper
	Report    *report.Reporter
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

// New returns a Loop that Run starts.
func New(c Config) *Loop {
	w := &Loop{
		node:    c.Node,
		options: c.Options,
		log:     c.Log,
		sources: c.Sources,
		sinks:   c.Sinks,
		stops:   stops{markRemoved: lb.NewSignal()},
	}
	w.loop = daemon.NewLoop(daemon.LoopConfig{
		Name:        "plan",
		Log:         c.Log,
		Sync:        w.sync,
		Burst:       c.Sources.Cluster.InBurst,
		BurstFactor: planFactor,
	})
	w.stops.hang = newHang(w, w.loop)
	return w
}

// Run plans until ctx ends. It returns an error if a run does not end then.
func (w *Loop) Run(ctx context.Context) error { return w.stops.hang.Run(ctx) }

// Kick makes a plan. It never blocks.
func (w *Loop) Kick() { w.loop.Kick() }

// Hurry makes a plan without the pause after the last one.
func (w *Loop) Hurry() { w.loop.Hurry() }

// Plan returns the last plan; an empty one before the first.
func (w *Loop) Plan() plan.Plan { return w.last.Load().plan() }

// Alive returns an error if the kubelet should start another process: see hang.
func (w *Loop) Alive() error { return w.stops.hang.alive() }

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
func (w *Loop) sync(context.Context) (again time.Duration, err error) {
	isSynced := w.sources.Cluster.Synced() &&
		w.sources.Links.Synced() &&
		w.sources.Kernel.Checked()
	if !isSynced {
		return 0, nil // each of them kicks when it has synced
	}
	if w.sources.Cluster.Uninstalling() {
		return 0, w.withdraw()
	}

	if w.stops.withdrawing {
		w.stops.markRemoved.Kick() // BGP, for example, does not start again in this process
		return 0, nil
	}

	in := w.read(w.sources.Links.Links())
	w.observe(in)
	pods, areKnown := w.proxyPods(in.state.ProxyPods)
	if !areKnown {
		return 0, nil // their answer kicks
	}

	in.state.ProxyPods = pods
	if !w.sources.Membership.Ready() {
		return 0, w.filterOnly(in) // the membership kicks when it is
	}

	view := w.sources.Membership.view()
	if view.Settled {
		w.sources.Membership.send(w.self(in))
	}

	metadata := w.sources.Membership.metadata()
	w.sources.Liveness.Set(liveness.Known{
		View:     view,
		Members:  metadata,
		Speakers: in.state.Speakers,
		Address:  w.sources.Membership.address(),
		Services: in.state.Services,
	})
	if !view.Settled {
		return 0, w.filterOnly(in) // the membership kicks once the other speakers had time to send their metadata
	}

	again, err = w.run(in, view, metadata)
	isWhole := !w.memory.IsLate()
	if isWhole {
		w.sources.Membership.confirm(view)
	}
	w.stops.saidGoodbye.Store(in.stopping && isWhole)
	return again, err
}

// read reads the links, and compiles the objects of the API server if they changed: the death of a node changes no
// object, and its addresses must not wait. The controller reports the Problems of objects.
func (w *Loop) read(links []lb.Interface) inputs {
	version := w.sources.Cluster.Version()
	if version != w.objects.version {
		w.objects.compiled, _ = w.objects.compiler.Compile(w.sources.Cluster.Objects(), w.options)
		w.objects.version = version
	}

	state := w.objects.compiled
	state.Here.Addresses = link.Addresses(links)
	state.Speakers = w.sources.Cluster.SpeakerAddresses()
	state.Here.Newcomers = w.newcomers
	return inputs{
		links:    links,
		state:    state,
		sessions: w.sinks.BGP.Sessions(),
		stopping: w.stops.stopping.Load() || w.stops.hung.Load(),
	}
}

// observe sets what the sources watch: no other step between the objects and the plan sets anything.
func (w *Loop) observe(in inputs) {
	w.sources.Links.SetSurroundings(facts.Surroundings(in.state, w.node))
	here, _ := w.splitProxies(in.state.ProxyPods)
	w.sources.Proxies.Set(here)
	w.sources.Endpoints.Set(w.healthPorts(in))
	w.sources.Membership.observe(in.state.Speakers, func(own netip.Addr) []heartbeat.Link {
		return facts.FrameLinks(in.state, in.links, own)
	})
}

// healthPorts returns the ports at which kube-proxy reports what it serves here; none where another program delivers.
func (w *Loop) healthPorts(in inputs) map[lb.Key]kubeproxy.HealthPort {
	if w.options.OtherDataPath {
		return nil
	}
	return w.localServices.HealthPorts(in.state, w.node, w.sinks.HeadStart.Leads)
}

// unserved returns the Services with externalTrafficPolicy Local whose endpoints on this node kube-proxy does not serve
// yet.
func (w *Loop) unserved() (out map[lb.Key]bool) {
	for _, key := range w.sources.Endpoints.Waiting() {
		if out == nil {
			out = map[lb.Key]bool{}
		}
		out[key] = true
	}
	return out
}

// filterOnly sets the filter and nothing else: this node announces nothing yet, and its kernel goes on with the relays
// of an earlier run.
func (w *Loop) filterOnly(in inputs) error {
	in.state.Now = time.Now()
	p := plan.ForNode(w.node, in.state)
	w.newcomers = p.Newcomers
	node := in.state.Nodes[w.node]
	return w.sinks.Filter.set(p, w.sinks.Relays.lasting(), node, in.links)
}

// LinksChanged makes a plan. It does so at once if a link is gone that the other speakers know: its addresses must not
// wait for the pause in a burst.
func (w *Loop) LinksChanged(links []lb.Interface) {
	present, sent := facts.Member(links, nil, nil), w.sources.Membership.sent.Load()
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
func (w *Loop) run(
	in inputs,
	view detect.NodeSets,
	metadata map[string]lb.Member,
) (again time.Duration, err error) {
	live := w.sources.Liveness.State()
	w.speakers = facts.NewSpeakers(metadata, w.speakers)
	state := w.complete(in, view, live)
	w.sinks.Owners.SetHeldDown(state.HeldDown[w.node] || live.HearsBadly || live.GivenUp)
	p, err := w.apply(in, state, w.speakers.MACs)
	w.newcomers = p.Newcomers
	w.sources.Liveness.SetOwners(p.Owners)
	done := &planned{
		Standing: report.Standing{
			Plan:     p,
			Members:  state.Members,
			Problems: append(w.problems(in.links), live.Problems...),
			Closings: w.sinks.Outgoing.closings(),
			Sessions: in.sessions,
		},
		Epoch:   view.Epoch,
		Goodbye: goodbye(state.Nodes[w.node], p),
	}
	w.logChanges(w.last.Load(), done)
	w.last.Store(done)
	if in.stopping && w.stops.hung.Swap(false) {
		w.loop.Kick()
	}

	if w.memory.IsLate() {
		w.loop.Hurry() // the next run plans the rest
	}

	w.sinks.Report.Set(done.Standing)
	again = live.Again
	ends := lb.Sooner(lb.Sooner(p.RelaysEnd, p.Withdraws), p.Newcomers.Ends())
	if !ends.IsZero() {
		again = daemon.Sooner(again, max(ends.Sub(state.Now), time.Millisecond))
	}

	return again, err
}

// complete adds to the State what is known from all sources but the API server.
func (w *Loop) complete(
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
	s.Stopping = w.sources.Cluster.StoppingSpeakers()
	w.speakers.Apply(&s)
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
	s.Here.Newer = w.sinks.Owners.Newer()
	if s.Here.CutOffFrom != nil {
		s.Here.Announced = last.plan().Announcements
	}

	s.Here.Previous = last.previous(view.Epoch)
	if s.Here.Previous == nil && w.sinks.Relays.on {
		s.Here.Inherited = w.sinks.Relays.inherited()
	}

	s.Here.Unfiltered = w.sinks.Filter.failed()
	s.Here.Refused = w.sinks.Filter.refused()
	isBehind := w.sinks.Owners.API() == lb.APIBehind
	s.Here.EgressLacks = w.sinks.Outgoing.lacks(!s.Here.Unfiltered, isBehind, w.sources.Cluster.APIAge())
	s.Here.Ways = facts.Ways(in.links)
	s.Here.Unserved = w.unserved()
	return s
}

// apply plans, and sets the sinks in this order: withdraw, filter, relay, serve new addresses, announce. The filter
// comes before the announcements because kube-proxy may serve an address already, and a client may know the MAC of any
// node. Packets that the filter accepts find the way to a proxy of this node at once.
func (w *Loop) apply(
	in inputs,
	state lb.State,
	macs map[lb.MAC]bool,
) (plan.Plan, error) {
	last := w.last.Load().plan()
	p := w.memory.ForNode(w.node, state)
	if !w.sinks.Relays.on {
		p.Relays = lb.Map[netip.Addr, lb.Relay]{}
		p.RelaysEnd = time.Time{}
	}

	w.sinks.Conntrack.Relay(p.Relays, state.Now)
	rest, isLess := last.Staying(p)
	if isLess {
		w.announce(in, rest, macs)
	}

	ways := divert.Desired{
		NodePorts:  p.ClosedNodePorts,
		Proxies:    w.ownProxies(state.ProxyPods),
		Diversions: p.Entering(last, false),
	}
	w.sinks.Divert.Set(ways)
	relayed := w.sinks.Relays.relayed(p.Relays)
	filterErr := w.sinks.Filter.set(p, relayed, state.Nodes[w.node], in.links)
	changed := w.sinks.Filter.failed() != state.Here.Unfiltered ||
		!w.sinks.Filter.refused().Same(state.Here.Refused)
	if changed {
		w.loop.Hurry() // the next run plans by that, and tells the others
	}

	if (filterErr != nil || changed) && !state.Here.Unfiltered {
		p = p.Waiting(last)
	}

	relayErr := w.sinks.Relays.set(relay.Desired{
		Relays:   p.Relays,
		Expect:   p.Owners.Len() > 0,
		Speakers: macs,
	})
	// The order lets a connection find a proxy or a head start at every moment.
	ways.Diversions = p.Entering(last, true)
	w.sinks.Divert.Set(ways)
	w.sinks.HeadStart.Set(w.starts(p.Newcomers.ByService()))
	ways.Diversions = p.Diversions
	w.sinks.Divert.Set(ways)
	w.sources.Endpoints.Ask()
	w.announce(in, p, macs)
	w.sinks.Conntrack.Set(w.lostEndpoints(p.Lost))
	return p, errors.Join(filterErr, relayErr, w.translate(state, macs))
}

// translate sets the tables of outgoing connections. They stay as an earlier process left them until the pods of this
// node are known.
func (w *Loop) translate(state lb.State, macs map[lb.MAC]bool) error {
	sends := slices.ContainsFunc(state.Services, (*lb.Service).Sends)
	if sends && !w.sources.Cluster.EgressSynced() {
		return nil
	}
	return w.sinks.Outgoing.set(w.memory.Egress(), state, macs)
}

// starts returns where connections to new addresses go. Without the filter only kube-proxy enforces source ranges, so
// no address gets a head start.
func (w *Loop) starts(fresh map[lb.Key][]netip.Addr) []lb.Start {
	if !w.sinks.Filter.inForce() {
		fresh = nil
	}
	return w.objects.compiler.Starts(fresh, w.node)
}

// announce sets the sinks that attract traffic. It sets none if this run was found to hang: other nodes take over then,
// and the next plan decides which addresses this node has.
func (w *Loop) announce(
	in inputs,
	p plan.Plan,
	macs map[lb.MAC]bool,
) {
	if w.stops.hung.Load() && !in.stopping {
		return
	}

	w.sinks.Layer2.Set(layer2.Desired{
		Announcements: p.Announcements,
		Yield:         p.Yield,
		Speakers:      macs,
		Owners:        p.Owners,
	})
	w.sinks.Owners.Kick()

	routes := bgp.Desired{
		RouterID: p.RouterID,
		Peers:    p.Peers,
		Routes:   p.Routes,
	}
	own := w.objects.compiled.Nodes[w.node]
	w.sinks.Peering.Set(routes, own.Addresses)
}

// lostEndpoints returns the endpoints on lost nodes that cannot serve.
func (w *Loop) lostEndpoints(nodes map[string]bool) map[netip.Addr]bool {
	if len(nodes) == 0 {
		return nil
	}

	return w.objects.compiler.LostEndpoints(nodes)
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

// Ready returns nil if all informers have synced, the first plan is applied, and BGP sessions are up or not waited for.
func (w *Loop) Ready() error {
	switch {
	case w.stops.withdrawn.Load():
		return errors.New("uninstalling: everything is withdrawn")
	case !w.sources.Cluster.Synced():
		return errors.New("informers are not synced")
	case !w.sources.Membership.Ready():
		return errors.New("the membership has not started")
	case w.last.Load() == nil, w.loop.Completed() == 0, !w.sinks.Peering.Applied():
		return errors.New("the first plan is not applied")
	}

	return w.sinks.Report.Ready(w.sources.Cluster.ReadyWithoutSessions(w.node))
}
