package main

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

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
	"github.com/holdfast-lb/holdfast/internal/node"
	"github.com/holdfast-lb/holdfast/internal/node/owners"
	"github.com/holdfast-lb/holdfast/internal/peering"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/podnetwork"
	"github.com/holdfast-lb/holdfast/internal/report"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// parts are all parts of a speaker. They kick each other, but not before they run.
type parts struct {
	settings settings
	log      *slog.Logger
	sources  node.Sources
	sinks    node.Sinks
	// prober asks by layer 2 and the API server whether nodes are alive.
	prober *daemon.Loop
	plan   *node.Loop
}

// assemble constructs all parts and starts none.
func assemble(clients k8s.Clients, s settings, log *slog.Logger) (*parts, error) {
	engine, err := beside("bgp")
	if err != nil {
		return nil, err
	}

	p := &parts{settings: s, log: log}
	p.assembleSources(clients)
	p.assembleSinks()
	p.assembleBGP(engine)
	p.assembleLiveness()
	p.assembleReport()
	p.plan = node.New(node.Config{
		Node:    s.nodeName,
		Options: s.node.Options,
		Log:     log,
		Sources: p.sources,
		Sinks:   p.sinks,
	})
	return p, nil
}

// kick makes a plan, and hurry makes one without the pause after the last one.
func (p *parts) kick()  { p.plan.Kick() }
func (p *parts) hurry() { p.plan.Hurry() }

// assembleSources constructs the sources, without liveness.
func (p *parts) assembleSources(clients k8s.Clients) {
	s, from := p.settings, &p.sources
	from.Kernel = kernel.New(p.log, tries(s), p.kick)
	from.Membership = &node.Membership{}
	from.Cluster = k8s.New(clients, k8s.Config{
		Log:       p.log,
		Component: "holdfast-speaker",
		Namespace: s.Namespace,
		DaemonSet: s.DaemonSet,
		Speaker:   true,
		Node:      s.nodeName,
		Proxies:   s.node.Options.Proxy.Service,
		Kick:      p.kick,
	})

	// layer2 opens its sockets before the links become metadata.
	linksChanged := func() {
		p.sinks.Layer2.Kick()
		p.sinks.Peering.Hurry()
		p.plan.LinksChanged(p.sources.Links.Links())
	}
	from.Links = link.New(p.log, linksChanged, s.excludedLinks...)

	from.Boot = kubeproxy.New(kubeproxy.Config{
		Log:   p.log,
		Livez: s.kubeProxyLivez,
		Kick:  p.kick,
	})
	from.PodNetwork = podnetwork.New(podnetwork.Config{
		Log:    p.log,
		Settle: s.settleTime(),
		Kick:   p.kick,
		Remote: func() []netip.AddrPort {
			return config.PodsElsewhere(p.sources.Cluster.Objects(), s.nodeName)
		},
	})
	from.Endpoints = kubeproxy.NewEndpoints(p.log, p.kick)
	from.Proxies = divert.NewAsker(p.log, p.kick)
}

// assembleSinks constructs the sinks, without BGP and the report.
func (p *parts) assembleSinks() {
	s, to := p.settings, &p.sinks
	lacks, links := p.sources.Kernel, p.sources.Links.Links
	to.Filter = node.NewFilter(p.log, s.node, lacks, p.hurry)
	to.Relays = node.NewRelays(p.log, s.node, links, p.kick)
	to.Outgoing = node.NewOutgoing(p.log, s.node, lacks, links, p.kick)
	to.Divert = divert.New(p.log, func() {
		lacks.Recheck()
		p.kick()
	})
	to.HeadStart = kubeproxy.NewHeadStart(p.log)
	to.Conntrack = kubeproxy.NewSweeper(p.log)
	to.Layer2 = layer2.New(layer2.Config{
		Log:                p.log,
		Links:              links,
		Gateways:           link.Gateways,
		Timers:             layer2.Timers{Rate: s.announceRate},
		AnnounceByRequest:  s.announceByRequest,
		Lease:              p.sources.Membership,
		ReceivesHeartbeats: func() bool { return p.sources.Liveness.Hears() },
		Precedence:         func() lb.Precedence { return p.sinks.Owners.Precedence() },
		Claimed:            func() { p.sinks.Owners.Kick() },
		Changed:            func() { p.sinks.Report.Kick() },
		Refused:            p.hurry,
	})
	to.Owners = owners.New(owners.Config{
		Node:    s.nodeName,
		Log:     p.log,
		Layer2:  to.Layer2,
		Wire:    to.Layer2,
		Peers:   p.sources.Membership,
		Plan:    func() plan.Plan { return p.plan.Plan() },
		Age:     p.sources.Cluster.APIAge,
		Changed: p.kick,
	})
}

// assembleBGP constructs the sinks of BGP. Engine is the program of a BGP engine.
func (p *parts) assembleBGP(engine string) {
	p.sinks.BGP = bgp.New(bgp.Config{
		Log:     p.log,
		Command: []string{engine},
		// The other speakers learn whether there is a session.
		Kick: func() {
			p.sinks.Peering.Kick()
			p.sinks.Report.KickState()
			p.kick()
		},
	})
	p.sinks.Peering = peering.New(peering.Config{
		Log:      p.log,
		BGP:      p.sinks.BGP,
		Links:    p.sources.Links.Links,
		PodLinks: p.settings.node.PodLinks,
		Changed:  func() { p.sinks.Report.KickState() },
	})
}

// assembleLiveness constructs what asks nodes by layer 2 and the API server whether they are alive.
func (p *parts) assembleLiveness() {
	s := p.settings
	p.sources.Liveness = liveness.New(liveness.Config{
		Log:            p.log,
		Node:           lb.Object{Kind: config.KindNode, Name: s.nodeName},
		BootedAt:       time.Now().Add(-rt.Boottime()),
		MembersPort:    uint16(s.membersPort),
		HeartbeatPort:  uint16(s.heartbeatPort),
		Cluster:        node.Votes{Cluster: p.sources.Cluster},
		HearsSome:      p.sources.Membership.HearsSome,
		Changed:        p.hurry, // a death is rare, and must not wait for the pause after a run
		Asker:          p.sinks.Layer2,
		Links:          p.sources.Links.Links,
		SilenceChanged: func() { p.sinks.Report.KickState() },
		KickProbe:      func() { p.prober.Kick() },
	})
	p.prober = daemon.NewLoop(daemon.LoopConfig{
		Name: "probe",
		Log:  p.log,
		Sync: p.sources.Liveness.Probe,
	})
}

// assembleReport constructs the report.
func (p *parts) assembleReport() {
	p.sinks.Report = report.New(report.Config{
		Log:         p.log,
		Node:        p.settings.nodeName,
		Cluster:     p.sources.Cluster,
		Layer2:      p.sinks.Layer2,
		Liveness:    p.sources.Liveness,
		Links:       p.sources.Links.Links,
		Sessions:    p.sinks.BGP.Sessions,
		Speakers:    p.sources.Membership.Speakers,
		KeysVersion: p.sources.Membership.KeysVersion,
		ProxyFaults: p.sources.Proxies.Faults,
	})
}

// registry returns a registry with the metrics of all parts.
func (p *parts) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		daemon.BuildInfo(),
		daemon.Stderr.Dropped(),
		p.sinks.Layer2,
		p.sinks.BGP,
		p.sinks.Peering.BFD,
		p.sinks.Peering.Messages(),
		p.sinks.Filter.Table,
		p.sinks.Relays,
		p.sinks.Outgoing,
		p.sinks.Conntrack.Forgotten,
		p.sources.Membership,
		&report.Metrics{
			Standing:     p.plan.Standing,
			Layer2:       p.sinks.Layer2,
			Sessions:     p.sinks.BGP.Sessions,
			Tables:       p.plan.Tables,
			ProxyRepairs: p.sinks.Divert.Repairs,
			Hangs:        p.plan.Hangs,
			APIAge:       p.plan.APIAge,
		},
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{
			Namespace: "holdfast_heartbeat",
			PidFn:     p.sources.Membership.Process,
		}),
	)
	return r
}
