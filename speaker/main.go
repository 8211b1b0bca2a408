// Command speaker announces addresses from one node, by ARP and NDP or by BGP, and
// filters what comes for them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/conntrack"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/httpd"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/loop"
	"github.com/holdfast-lb/holdfast/internal/relay"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
)

func main() { os.Exit(run()) }

// Bounds of the heartbeat's interval: below them a thread's own delay is taken for a
// death, above them there is no hurry.
const (
	leastInterval = 10 * time.Millisecond
	mostInterval  = time.Second
)

// settings are the flags of the process.
type settings struct {
	daemon.Settings
	nodeName                   string
	membersPort, heartbeatPort uint
	heartbeatInterval          time.Duration
	realtime                   bool
	filterInternal             bool
}

func (s *settings) parse(args []string) error {
	f := flag.NewFlagSet("speaker", flag.ContinueOnError)
	s.Define(f, "127.0.0.1:9218")
	f.StringVar(&s.nodeName, "node-name", os.Getenv("NODE_NAME"), "`name` of the node this speaker runs on")
	f.UintVar(&s.membersPort, "members-port", 7947, "TCP and UDP `port` of the speakers' membership")
	f.BoolVar(&s.filterInternal, "filter-internal-traffic", false, "hold traffic from within the cluster to the source ranges of Services too")
	f.UintVar(&s.heartbeatPort, "heartbeat-port", 7948, "UDP `port` of the speakers' heartbeats")
	f.DurationVar(&s.heartbeatInterval, "heartbeat-interval", 50*time.Millisecond, "`time` between heartbeats; a node is missed after three")
	f.BoolVar(&s.realtime, "heartbeat-realtime", true, "give the thread of the heartbeats real-time priority, which takes SYS_NICE; without it a node is missed after nine heartbeats")
	if err := s.Parse(f, args); err != nil {
		return err
	}
	if s.nodeName == "" {
		return errors.New("--node-name is not given and NODE_NAME is not set")
	}
	for name, port := range map[string]uint{"members-port": s.membersPort, "heartbeat-port": s.heartbeatPort} {
		if port == 0 || port > 65535 {
			return fmt.Errorf("--%s %d is not between 1 and 65535", name, port)
		}
	}
	if s.heartbeatPort == s.membersPort {
		return fmt.Errorf("--heartbeat-port and --members-port are both %d", s.membersPort)
	}
	if s.heartbeatInterval < leastInterval || s.heartbeatInterval > mostInterval {
		return fmt.Errorf("--heartbeat-interval %v is not between %v and %v", s.heartbeatInterval, leastInterval, mostInterval)
	}
	return nil
}

func run() int {
	var s settings
	return daemon.Main("speaker", &s.Settings, func() error { return s.parse(os.Args[1:]) },
		func(ctx context.Context, log *slog.Logger) error {
			log = log.With("node", s.nodeName)
			k8s.LogTo(log)
			return serve(ctx, s, log)
		})
}

// serve runs until ctx is cancelled, and then until others announce what this node
// did. The membership goes next, the sinks last.
func serve(ctx context.Context, s settings, log *slog.Logger) error {
	clients, err := k8s.Connect(s.Kubeconfig, "holdfast-speaker")
	if err != nil {
		return err
	}
	if err := clients.WaitForVersion(ctx, log); err != nil {
		return err
	}
	w := &syncer{node: s.nodeName, options: s.Options, log: log}
	work := loop.New(loop.Config{Name: "plan", Log: log, Sync: w.sync})
	report := &reporter{node: s.nodeName, log: log}
	reports := loop.New(loop.Config{Name: "report", Log: log, Sync: report.sync})
	states := &stateWriter{node: s.nodeName, log: log, alive: w.alive}
	tells := loop.New(loop.Config{Name: "state", Log: log, Sync: states.sync, MinInterval: 20 * time.Millisecond})
	partition := &witness{node: s.nodeName, log: log, alive: w.alive, changed: work.Kick}
	looks := loop.New(loop.Config{Name: "partition", Log: log, Sync: partition.sync})
	partition.kick, w.aside = looks.Kick, partition.aside
	sweep := &sweeper{options: s.Options, log: log, alive: w.alive, forget: conntrack.Forget, forgotten: &w.forgotten}
	sweeps := loop.New(loop.Config{Name: "sweep", Log: log, Sync: sweep.sync, MinInterval: 500 * time.Millisecond})
	sweep.kick = sweeps.Kick
	w.surroundings = newListener(log, s.nodeName, uint16(s.membersPort))
	listens := loop.New(loop.Config{Name: "silence", Log: log, Sync: w.surroundings.sync, MinInterval: 10 * time.Millisecond})
	w.surroundings.kick, w.surroundings.lostChanged, w.surroundings.asked = listens.Kick, work.Kick, tells.Kick
	w.surroundings.view, w.surroundings.api = w.joined, partition.apiAnswers
	states.silence = w.surroundings.silent
	w.planned = func() { reports.Kick(); tells.Kick(); sweeps.Kick() }
	w.kick = work.Kick

	w.cluster, err = k8s.New(clients, k8s.Config{
		Log: log, Component: "holdfast-speaker", Namespace: s.Namespace, DaemonSet: s.DaemonSet, Speaker: true, Kick: work.Kick,
	})
	if err != nil {
		return err
	}
	partition.cluster, sweep.cluster, w.surroundings.cluster = w.cluster, w.cluster, w.cluster
	w.links = link.New(log, work.Kick)
	w.layer2 = layer2.New(layer2.Config{Log: log, Links: w.links.Links, Lease: w, Changed: reports.Kick})
	w.bgp = bgp.New(bgp.Config{Log: log, NodeName: s.nodeName, Kick: w.planned})
	w.filter = newGuard(log, s)
	w.relay = relay.New(relay.Config{Log: log, Links: w.links.Links})
	report.cluster, report.sessions, report.layer2, report.last, report.kick = w.cluster, w.bgp.States, w.layer2.State, &w.last, reports.Kick
	report.pace.crowded, report.pace.announcing = w.cluster.Crowded, w.layer2.Announcing
	states.cluster, states.layer2, states.sessions, states.kick = w.cluster, w.layer2.State, w.bgp.States, tells.Kick
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), w.layer2, w.bgp, w.filter.table, w.relay, w)

	sinks, after := context.WithCancel(context.WithoutCancel(ctx))
	defer after()
	told := ctx.Done()
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer stop()
		w.handOver(ctx, told, work.Kick)
		return nil
	})
	ended := make(chan error)
	w.end = func(err error) {
		select {
		case ended <- err:
		case <-ctx.Done():
		}
	}
	group.Go(func() error {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return nil
		}
	})
	group.Go(func() error { return w.cluster.Run(ctx) })
	group.Go(func() error { return w.links.Run(sinks) })
	group.Go(func() error { return w.layer2.Run(sinks) })
	group.Go(func() error { return w.bgp.Run(sinks) })
	group.Go(func() error { return w.filter.run(sinks, work.Kick) })
	group.Go(func() error { return w.relay.Run(sinks) })
	group.Go(func() error { return work.Run(ctx) })
	group.Go(func() error { return reports.Run(ctx) })
	group.Go(func() error { return tells.Run(ctx) })
	group.Go(func() error { return looks.Run(ctx) })
	group.Go(func() error { return sweeps.Run(ctx) })
	group.Go(func() error { return listens.Run(ctx) })
	group.Go(func() error { return httpd.Serve(ctx, s.MetricsListen, httpd.Metrics(registry)) })
	group.Go(func() error {
		return httpd.Serve(ctx, s.HealthListen, httpd.Health(func() error { return w.ready(work.Done()) }))
	})
	group.Go(func() error { return httpd.Serve(ctx, s.DebugListen, httpd.Debug(w.debug)) })
	group.Go(func() error {
		defer after()
		return w.runMembers(ctx, s, func() { work.Kick(); listens.Kick(); tells.Kick(); looks.Kick() })
	})
	return group.Wait()
}
