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
	w, err := assemble(clients, s, log)
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
		w.handOver(ctx, stopOrder)
		return nil
	})
	group.Go(func() error {
		select {
		case <-w.markRemoved:
			return errMarkRemoved
		case <-ctx.Done():
			return nil
		}
	})
	for _, run := range []func(context.Context) error{
		w.links.Run, w.layer2.Run, w.peering.Run, w.relays.Run, w.outgoing.Run, w.filter.table.Run,
	} {
		group.Go(func() error { return run(sinks) })
	}
	if s.Options.Proxies() {
		group.Go(func() error { return w.divert.Run(sinks) })
	}
	group.Go(func() error {
		if w.cluster.WaitForSync(ctx) != nil {
			return nil
		}
		return w.podNetwork.Run(ctx)
	})
	slack := daemon.NewLoop(daemon.LoopConfig{Name: "slack", Log: log, Sync: slacken})
	for _, run := range []func(context.Context) error{
		w.cluster.Run, w.boot.Run, w.endpoints.Run, w.proxies.Run, w.kernel.Run, w.liveness.Run, w.prober.Run,
		w.owners.loop.Run, w.hang.Run, w.report.Run, w.conntrack.Run, slack.Run,
	} {
		group.Go(func() error { return run(ctx) })
	}
	group.Go(func() error { return s.ServeMetrics(ctx, w.registry(), clients.MetricsReaders(), k8s.SelfSigned) })
	group.Go(func() error { return daemon.Serve(ctx, s.HealthListen, daemon.Health(w.hang.alive, w.ready), nil) })
	debug := http.NewServeMux()
	debug.Handle("/", daemon.Debug(w.debug))
	debug.Handle("POST /debug/probe", w.probes())
	group.Go(func() error { return daemon.Serve(ctx, s.DebugListen, debug, nil) })
	// BFD ends with the membership. If it ended before BGP, routers would end the sessions of BGP and drop their
	// routes, which they keep for a speaker that restarts (graceful restart).
	bgpRuns, bgpEnded := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer bgpEnded()
		return w.bgp.Run(ctx)
	})
	group.Go(func() error {
		defer stopSinks()
		return w.join(bgpRuns, s)
	})
	return group.Wait()
}
