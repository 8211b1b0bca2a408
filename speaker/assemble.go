package main

import (
	"log/slog"

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
	"github.com/holdfast-lb/holdfast/internal/relay"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// process is all parts of a speaker, each knowing of the others what it needs.
type process struct {
	syncer *syncer
	// work is the loop that plans; loops are all of them.
	work  *loop.Loop
	loops []*loop.Loop
	// met is to be called when members come, go or tell something.
	met func()
	// ended has the error by which the process ends itself.
	ended    chan error
	registry *prometheus.Registry
}

// assemble makes the parts. Nothing runs yet.
func assemble(clients k8s.Clients, s settings, log *slog.Logger) (*process, error) {
	w := &syncer{node: s.nodeName, options: s.Options, log: log}
	p := &process{syncer: w, ended: make(chan error, 1), registry: prometheus.NewRegistry()}
	report := &reporter{node: s.nodeName, log: log}
	state := &stateWriter{node: s.nodeName, log: log, alive: w.alive}
	sweep := &sweeper{options: s.Options, log: log, alive: w.alive, forget: conntrack.Forget, forgotten: &w.forgotten}

	work := loop.New(loop.Config{Name: "plan", Log: log, Sync: w.sync})
	reports := loop.New(loop.Config{Name: "report", Log: log, Sync: report.sync})
	writes := loop.New(loop.Config{Name: "state", Log: log, Sync: state.sync})
	sweeps := loop.New(loop.Config{Name: "sweep", Log: log, Sync: sweep.sync})
	p.work, p.loops = work, []*loop.Loop{work, reports, writes, sweeps}
	// A death is rare, and must not wait for the pause after a long run.
	p.met = work.Hurry

	w.kick = work.Kick
	w.planned = func() { reports.Kick(); writes.Kick(); sweeps.Kick() }
	w.end = func(err error) {
		select {
		case p.ended <- err:
		default: // it is ending already
		}
	}
	var err error
	w.cluster, err = k8s.New(clients, k8s.Config{
		Log: log, Component: "holdfast-speaker", Namespace: s.Namespace, DaemonSet: s.DaemonSet, Speaker: true, Kick: work.Kick,
	})
	if err != nil {
		return nil, err
	}
	// The links are tried before others hear of them.
	w.links = link.New(log, func() { w.layer2.Kick(); work.Kick() })
	w.layer2 = layer2.New(layer2.Config{Log: log, Links: w.links.Links, Lease: w, Changed: reports.Kick, Refused: work.Kick})
	w.liveness = liveness.New(liveness.Config{
		Log: log, Node: lb.Object{Kind: config.KindNode, Name: s.nodeName},
		MembersPort: uint16(s.membersPort), HeartbeatPort: uint16(s.heartbeatPort), Cluster: states{w.cluster},
		Asker: w.layer2, Links: w.links.Links, Changed: work.Hurry, SilenceChanged: writes.Kick,
	})
	w.boot = kubeproxy.New(kubeproxy.Config{Log: log, Livez: s.kubeProxyLivez, Kick: work.Kick})
	w.bgp = bgp.New(bgp.Config{Log: log, NodeName: s.nodeName, Kick: w.planned})
	w.filter = newGuard(log, s)
	w.relay = relay.New(relay.Config{Log: log, Links: w.links.Links})

	sweep.cluster = w.cluster
	report.cluster, report.sessions, report.layer2, report.last = w.cluster, w.bgp.States, w.layer2.State, &w.last
	report.pace.crowded, report.pace.announcing = w.cluster.InBurst, w.layer2.Announcing
	state.cluster, state.layer2, state.sessions, state.liveness = w.cluster, w.layer2.State, w.bgp.States, w.liveness

	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		w.layer2, w.bgp, w.filter.table, w.relay, w, w.heartbeatProcess())
	return p, nil
}
