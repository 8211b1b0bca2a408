package main

import (
	"log/slog"
	"net/netip"
	"time"

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
	"github.com/holdfast-lb/holdfast/internal/peering"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/podnetwork"
	"github.com/holdfast-lb/holdfast/internal/report"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// assemble constructs all parts and starts none. They kick each other, but not before they run.
func assemble(
	clients k8s.Clients,
	s settings,
	log *slog.Logger,
) (*syncer, error) {
	engine, err := beside("bgp")
	if err != nil {
		return nil, err
	}

	w := &syncer{
		node:    s.nodeName,
		options: s.Options,
		log:     log,
	}
	w.loop = daemon.NewLoop(daemon.LoopConfig{
		Name:        "plan",
		Log:         log,
		Sync:        w.sync,
		Burst:       func() bool { return w.cluster.InBurst() },
		BurstFactor: planFactor,
	})
	w.hang = newHang(w, w.loop)
	w.markRemoved = lb.NewSignal()
	w.assembleSources(clients, s)
	w.assembleSinks(s, engine)
	w.assembleLiveness(s)
	w.report = report.New(report.Config{
		Log:         log,
		Node:        s.nodeName,
		Cluster:     w.cluster,
		Layer2:      w.layer2,
		Liveness:    w.liveness,
		Links:       w.links.Links,
		Sessions:    w.bgp.Sessions,
		Speakers:    w.membership.speakers,
		KeysVersion: w.membership.keysVersion,
		ProxyFaults: w.proxies.Faults,
	})
	return w, nil
}

// assembleSources constructs the sources, without liveness.
func (w *syncer) assembleSources(clients k8s.Clients, s settings) {
	kick := w.loop.Kick
	w.kernel = kernel.New(w.log, tries(s), kick)
	w.membership = &membership{}
	w.cluster = k8s.New(clients, k8s.Config{
		Log:       w.log,
		Component: "holdfast-speaker",
		Namespace: s.Namespace,
		DaemonSet: s.DaemonSet,
		Speaker:   true,
		Node:      s.nodeName,
		Proxies:   s.Options.Proxy.Service,
		Kick:      kick,
	})

	// layer2 opens its sockets before the links become metadata.
	linksChanged := func() {
		w.layer2.Kick()
		w.peering.Hurry()
		w.linksChanged(w.links.Links())
	}
	w.links = link.New(w.log, linksChanged, s.excludedLinks...)

	w.boot = kubeproxy.New(kubeproxy.Config{
		Log:   w.log,
		Livez: s.kubeProxyLivez,
		Kick:  kick,
	})
	w.podNetwork = podnetwork.New(podnetwork.Config{
		Log:    w.log,
		Settle: s.settleTime(),
		Kick:   kick,
		Remote: func() []netip.AddrPort {
			return config.PodsElsewhere(w.cluster.Objects(), w.node)
		},
	})
	w.endpoints = kubeproxy.NewEndpoints(w.log, kick)
	w.proxies = divert.NewAsker(w.log, kick)
}

// assembleSinks constructs the sinks, without the report. Engine is the program of a BGP engine.
func (w *syncer) assembleSinks(s settings, engine string) {
	kick := w.loop.Kick
	w.filter = newGuard(w.log, s, w.kernel, w.loop.Hurry)
	w.relays = newRelays(w.log, s, w.links.Links, kick)
	w.outgoing = newOutgoing(w.log, s, w.kernel, w.links.Links, kick)
	w.divert = divert.New(w.log, func() {
		w.kernel.Recheck()
		kick()
	})
	w.headstart = kubeproxy.NewHeadStart(w.log)
	w.conntrack = kubeproxy.NewSweeper(w.log)
	w.layer2 = layer2.New(layer2.Config{
		Log:                w.log,
		Links:              w.links.Links,
		Gateways:           link.Gateways,
		Timers:             layer2.Timers{Rate: s.announceRate},
		AnnounceByRequest:  s.announceByRequest,
		Lease:              w.membership,
		ReceivesHeartbeats: func() bool { return w.liveness.Hears() },
		Precedence:         func() lb.Precedence { return w.owners.precedence() },
		Claimed:            func() { w.owners.loop.Kick() },
		Changed:            func() { w.report.Kick() },
		Refused:            w.loop.Hurry,
	})

	w.bgp = bgp.New(bgp.Config{
		Log:     w.log,
		Command: []string{engine},
		// The other speakers learn whether there is a session.
		Kick: func() {
			w.peering.Kick()
			w.report.KickState()
			kick()
		},
	})
	w.peering = peering.New(peering.Config{
		Log:      w.log,
		BGP:      w.bgp,
		Links:    w.links.Links,
		PodLinks: s.podLinks,
		Changed:  func() { w.report.KickState() },
	})

	w.owners = &owners{
		node:   w.node,
		log:    w.log,
		layer2: w.layer2,
		wire:   w.layer2,
		peers:  w.membership,
		age:    w.cluster.APIAge,
		kick:   kick,
		newer:  map[netip.Addr]newerOwner{},
		plan:   func() plan.Plan { return w.last.Load().plan() },
	}
	w.owners.loop = daemon.NewLoop(daemon.LoopConfig{
		Name:        "owners",
		Log:         w.log,
		Sync:        w.owners.turn,
		MinInterval: askInterval,
	})
}

// assembleLiveness constructs what asks nodes by layer 2 and the API server whether they are alive.
func (w *syncer) assembleLiveness(s settings) {
	w.liveness = liveness.New(liveness.Config{
		Log:            w.log,
		Node:           lb.Object{Kind: config.KindNode, Name: w.node},
		BootedAt:       time.Now().Add(-rt.Boottime()),
		MembersPort:    uint16(s.membersPort),
		HeartbeatPort:  uint16(s.heartbeatPort),
		Cluster:        votes{w.cluster},
		HearsSome:      w.membership.hearsSome,
		Changed:        w.loop.Hurry, // a death is rare, and must not wait for the pause after a run
		Asker:          w.layer2,
		Links:          w.links.Links,
		SilenceChanged: func() { w.report.KickState() },
		KickProbe:      func() { w.prober.Kick() },
	})
	w.prober = daemon.NewLoop(daemon.LoopConfig{
		Name: "probe",
		Log:  w.log,
		Sync: w.liveness.Probe,
	})
}
