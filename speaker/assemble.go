package main

import (
	"log/slog"
	"net/netip"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/report"
)

// assemble constructs all parts and starts none. They kick each other, but not before they run.
func assemble(clients k8s.Clients, s settings, log *slog.Logger) (*syncer, error) {
	var others foreign
	w := &syncer{}
	runs := daemon.NewLoop(daemon.LoopConfig{Name: "plan", Log: log, Sync: w.sync})
	kick := runs.Kick
	cluster, err := k8s.New(clients, k8s.Config{
		Log: log, Component: "holdfast-speaker", Namespace: s.Namespace, DaemonSet: s.DaemonSet, Speaker: true, Kick: kick,
	})
	if err != nil {
		return nil, err
	}
	m := &membership{node: s.nodeName, log: log}
	// layer2 opens its sockets before the links become metadata.
	links := link.New(log, func() { w.layer2.Kick(); w.paths.loop.Hurry(); kick() })
	l2 := layer2.New(layer2.Config{
		Log: log, Links: links.Links, Gateways: link.Gateways, Timers: layer2.Timers{Rate: s.announceRate}, Requests: s.announceByRequest, Lease: m, Changed: func() { w.report.Kick() },
		Refused: kick,
	})
	// The other speakers learn whether there is a session.
	engine, err := beside("bgp")
	if err != nil {
		return nil, err
	}
	peers := bgp.New(bgp.Config{Log: log, Command: []string{engine}, Kick: func() { w.paths.loop.Kick(); w.report.KickState(); kick() }})
	live := liveness.New(liveness.Config{
		Log: log, Node: lb.Object{Kind: config.KindNode, Name: s.nodeName},
		MembersPort: uint16(s.membersPort), HeartbeatPort: uint16(s.heartbeatPort), Cluster: report.States{Cluster: cluster},
		Changed: runs.Hurry, // a death is rare, and must not wait for the pause after a run
		Asker:   l2, Links: links.Links, SilenceChanged: func() { w.report.KickState() },
	})
	lacks := newKernel(log, s, kick)
	*w = syncer{
		loop: runs, hang: newHang(w, runs), node: s.nodeName, options: s.Options, log: log, ended: make(chan error, 1), sessions: sessionGate{log: log},
		cluster: cluster, links: links, membership: m, liveness: live,
		boot:      kubeproxy.New(kubeproxy.Config{Log: log, Livez: s.kubeProxyLivez, Kick: kick}),
		endpoints: kubeproxy.NewEndpoints(kubeproxy.EndpointsConfig{Log: log, Kick: kick}),
		kernel:    lacks, filter: newGuard(log, s, lacks, kick), relays: newRelays(log, s, links.Links, kick),
		layer2: l2, owners: &owners{
			node: s.nodeName, log: log, layer2: l2, ask: m.ask, members: m.alive, age: cluster.APIAge, kick: kick, newer: map[netip.Addr]newer{},
			plan: func() plan.Plan { return w.last.Load().plan() },
		},
		bgp: peers, paths: newPaths(log, peers, links.Links, s.podLinks, func() { w.report.KickState() }),
		conntrack: kubeproxy.NewSweeper(log), headstart: kubeproxy.NewHeadStart(log),
		report: report.New(report.Config{Log: log, NodeName: s.nodeName, Cluster: cluster, Layer2: l2, Sessions: peers.Sessions, Liveness: live,
			Foreign: func() []lb.Neighbour { return others.find(w) }}),
	}
	return w, nil
}
