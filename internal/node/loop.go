// Package node is the loop "plan" of a speaker: what one node does from the facts that it observes to what it sets in
// its kernel and on its links, and how it stops.
//
//	loop := node.New(node.Config{Node: "w1", Sources: sources, Sinks: sinks, ...})
//	go loop.Run(ctx)
//	loop.Kick()  // by every source that has something new
//
// One run (sync.go) reads the objects of the API server, sets what the other sources watch, reads these, and sends this
// node's metadata to the other speakers. From all facts it makes a State (package facts has what needs no source), and
// package plan makes a Plan of that. Then it sets the sinks in an order that loses no packet (apply.go), and gives the
// result to package report. What reads sets nothing, and nothing is decided but by the plan; the loop asks the compiler
// for the endpoints of what the plan decided.
//
// membership.go is this speaker's place among all speakers, memberkeys.go has its keys, and join.go starts it. self.go
// says what this node cannot do. tables.go and outgoing.go fit sinks to settings and to the kernel. stop.go hands over
// and withdraws, and hang.go detects a run that does not end. Package owners asks other speakers who owns what.
package node

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/divert"
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
	w.stops.hang = newHang(w.loop, w.offer, w.countOffered)
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
