package node

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	"github.com/holdfast-lb/holdfast/internal/node/facts"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/report"
)

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

// observe sets what the sources watch, as the objects say. Liveness follows once the membership is read.
func (w *Loop) observe(in inputs) {
	w.sources.Links.SetSurroundings(facts.Surroundings(in.state, w.node))
	here, _ := splitProxies(in.state.ProxyPods, w.node)
	w.sources.Proxies.Set(here)
	w.sources.Endpoints.Set(w.healthPorts(in))
	w.sources.Membership.observe(in.state.Speakers, func(own netip.Addr) []heartbeat.Link {
		return facts.FrameLinks(in.state, in.links, own)
	})
}

// proxyPods adds to the proxies of this node what each of them serves. They serve nothing while the kernel refuses the
// table that leads to them. It reports false while their first answers are awaited: until then the table of an earlier
// run stays.
func (w *Loop) proxyPods(pods []lb.ProxyPod) (out []lb.ProxyPod, settled bool) {
	_, elsewhere := splitProxies(pods, w.node)
	here, settled := w.sources.Proxies.Pods()
	if w.sinks.Divert.Failure() != nil {
		for i := range here {
			here[i].Frontends = map[lb.Key]map[uint16]uint16{}
		}
	}
	return append(elsewhere, here...), settled
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
