// Command speaker announces addresses from one node, by ARP and NDP or by BGP, and filters the traffic to them.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/node/probe"
	"golang.org/x/sync/errgroup"
)

func main() { os.Exit(run()) }

func run() int {
	if os.Getenv("GOMAXPROCS") == "" {
		// To look for more to do on other cores takes a fifth of the CPU of a process that wakes for one small thing.
		runtime.GOMAXPROCS(1)
	}
	var s settings
	return daemon.Main("speaker", &s.Settings, func() error { return s.parse(os.Args[1:]) },
		func(ctx context.Context, log *slog.Logger) error {
			log = log.With("node", s.nodeName)
			k8s.LogTo(log)
			return serve(ctx, s, log)
		})
}

// beside returns the path of a program that this one starts: it is in the same directory, in the image as in bin.
func beside(name string) (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the program %s: %w", name, err)
	}
	return filepath.Join(filepath.Dir(program), name), nil
}

// serve runs until ctx is cancelled, and then until others have taken over the addresses of this node. Then BGP stops,
// after it the membership, and the other sinks stop last.
func serve(ctx context.Context, s settings, log *slog.Logger) error {
	clients, err := k8s.Connect(s.Kubeconfig, "holdfast-speaker")
	if err != nil {
		return err
	}
	if err := clients.WaitForVersion(ctx, log); err != nil {
		return err
	}
	heartbeats, err := beside("heartbeat")
	if err != nil {
		return err
	}
	p, err := assemble(clients, s, log)
	if err != nil {
		return err
	}
	sinks, stopSinks := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSinks()
	stopOrder := ctx.Done()
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer stop()
		p.plan.HandOver(ctx, stopOrder)
		return nil
	})
	for _, run := range p.sinkRuns() {
		group.Go(func() error { return run(sinks) })
	}
	for _, run := range p.runs() {
		group.Go(func() error { return run(ctx) })
	}
	group.Go(func() error { return s.ServeMetrics(ctx, p.registry(), clients.MetricsReaders(), k8s.SelfSigned) })
	group.Go(func() error { return daemon.Serve(ctx, s.HealthListen, daemon.Health(p.plan.Alive, p.plan.Ready), nil) })
	debug := http.NewServeMux()
	debug.Handle("/", daemon.Debug(p.plan.Debug))
	debug.Handle("POST /debug/probe", probe.New(probe.Config{
		Node:     s.nodeName,
		Links:    p.sources.Links.Links,
		Layer2:   p.sinks.Layer2,
		Speakers: p.sources.Membership.Speakers,
		Plan:     p.plan.Plan,
	}))
	group.Go(func() error { return daemon.Serve(ctx, s.DebugListen, debug, nil) })
	// BFD ends with the membership. If it ended before BGP, routers would end the sessions of BGP and drop their
	// routes, which they keep for a speaker that restarts (graceful restart).
	bgpRuns, bgpEnded := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer bgpEnded()
		return p.sinks.BGP.Run(ctx)
	})
	group.Go(func() error {
		defer stopSinks()
		return p.plan.Join(bgpRuns, s.members(heartbeats))
	})
	return group.Wait()
}

// sinkRuns returns what runs until other nodes have taken over, and the membership has ended.
func (p *parts) sinkRuns() []func(context.Context) error {
	to := &p.sinks
	out := []func(context.Context) error{
		p.sources.Links.Run, to.Layer2.Run, to.Peering.Run, to.Relays.Run, to.Outgoing.Run, to.Filter.Table.Run,
	}
	if p.settings.node.Options.Proxies() {
		out = append(out, to.Divert.Run)
	}
	return out
}

// runs returns what else runs, without BGP and the membership.
func (p *parts) runs() []func(context.Context) error {
	from, to := &p.sources, &p.sinks
	podNetwork := func(ctx context.Context) error {
		if from.Cluster.WaitForSync(ctx) != nil {
			return nil
		}
		return from.PodNetwork.Run(ctx)
	}
	slack := daemon.NewLoop(daemon.LoopConfig{Name: "slack", Log: p.log, Sync: slacken})
	return []func(context.Context) error{
		from.Cluster.Run, from.Boot.Run, from.Endpoints.Run, from.Proxies.Run, from.Kernel.Run, from.Liveness.Run,
		podNetwork, p.prober.Run, to.Owners.Run, to.Report.Run, to.Conntrack.Run, slack.Run,
		p.plan.Run, p.plan.AwaitRemoval,
	}
}
