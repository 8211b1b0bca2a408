// Command controller assigns addresses from pools to Services of type
// LoadBalancer. It is the only writer of addresses. Several may run; one leads.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/httpd"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/loop"
	"github.com/holdfast-lb/holdfast/internal/quorum"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
)

func main() { os.Exit(run()) }

// settings are the flags of the process.
type settings struct {
	daemon.Settings
	timeout time.Duration
	// withdraw endpoints on dead nodes, on no more nodes at once than limit.
	withdraw bool
	limit    quorum.Limit
}

func run() int {
	args, task := os.Args[1:], serve
	if len(args) > 0 && args[0] == "uninstall" {
		args, task = args[1:], uninstall
	}
	var s settings
	f := flag.NewFlagSet("controller", flag.ContinueOnError)
	s.Define(f, ":9218")
	f.BoolVar(&s.withdraw, "withdraw-dead-endpoints", true, "mark pods that back Services as not ready when most speakers cannot reach their node")
	f.TextVar(&s.limit, "dead-endpoints-max-nodes", quorum.Limit{Percent: 10}, "most `nodes` of which that is done at once, as a number or a percentage")
	f.DurationVar(&s.timeout, "timeout", time.Minute, "uninstall: how long to wait for the speakers to withdraw")
	return daemon.Main("controller", &s.Settings, func() error { return s.Parse(f, args) },
		func(ctx context.Context, log *slog.Logger) error {
			k8s.LogTo(log)
			return task(ctx, s, log)
		})
}

func uninstall(ctx context.Context, s settings, log *slog.Logger) error {
	clients, err := k8s.Connect(s.Kubeconfig, "holdfast-uninstall")
	if err != nil {
		return err
	}
	return clients.Uninstall(ctx, log, s.Namespace, s.DaemonSet, s.timeout)
}

// serve runs until ctx is cancelled. Watches and pages run in every replica, the
// loop in the leader only.
func serve(ctx context.Context, s settings, log *slog.Logger) error {
	clients, err := k8s.Connect(s.Kubeconfig, "holdfast-controller")
	if err != nil {
		return err
	}
	if err := clients.WaitForVersion(ctx, log); err != nil {
		return err
	}
	syncer := &syncer{options: s.Options, log: log}
	work := loop.New(loop.Config{Name: "assign", Log: log, Sync: syncer.sync})
	dead := &withdrawer{options: s.Options, limit: s.limit, log: log}
	watch := loop.New(loop.Config{Name: "withdraw", Log: log, Sync: once(dead.sync), MinInterval: wordInterval})
	dead.kick = watch.Kick
	contested := &conflicts{changed: work.Kick}
	claims := loop.New(loop.Config{Name: "conflicts", Log: log, Sync: once(contested.sync), MinInterval: conflictsInterval})
	keys := &memberKeys{secret: s.MembersSecret, log: log}
	secret := loop.New(loop.Config{Name: "keys", Log: log, Sync: once(keys.sync), MaxRetryInterval: keysInterval, ResyncInterval: keysInterval})
	cluster, err := k8s.New(clients, k8s.Config{
		Log: log, Component: "holdfast-controller", Namespace: s.Namespace, DaemonSet: s.DaemonSet, Kick: work.Kick,
		KickStates: func() { watch.Kick(); claims.Kick() }, Endpoints: s.withdraw,
	})
	if err != nil {
		return err
	}
	syncer.cluster, dead.cluster, contested.cluster, keys.cluster = cluster, cluster, cluster, cluster
	syncer.conflicts = contested.all
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), syncer, dead)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return cluster.Run(ctx) })
	group.Go(func() error { return httpd.Serve(ctx, s.MetricsListen, httpd.Metrics(registry)) })
	group.Go(func() error { return httpd.Serve(ctx, s.HealthListen, httpd.Health(syncer.ready)) })
	group.Go(func() error { return httpd.Serve(ctx, s.DebugListen, httpd.Debug(syncer.debug)) })
	group.Go(func() error {
		for {
			err := cluster.Lead(ctx, identity(), func(ctx context.Context) error {
				contested.begin()
				keys.begin()
				if !s.withdraw {
					return lead(ctx, log, cluster, work.Run, claims.Run, secret.Run)
				}
				return lead(ctx, log, cluster, work.Run, claims.Run, secret.Run, func(ctx context.Context) error {
					dead.begin()
					defer dead.end()
					return watch.Run(ctx)
				})
			})
			if !errors.Is(err, errUninstalling) {
				return err
			}
			// The Lease is released while we may still write it; a later installation
			// would wait for it to expire.
			if err := cluster.WaitWhileUninstalling(ctx); err != nil {
				return nil
			}
		}
	})
	return group.Wait()
}

// errUninstalling ends a leader's work while Holdfast is being uninstalled.
var errUninstalling = errors.New("uninstalling")

// wordInterval is between looks at what speakers say: the words that make a
// majority come within some milliseconds.
const wordInterval = 10 * time.Millisecond

// lead works as the leader. It first reads past its caches, since its
// predecessor's last writes may not have reached them.
func lead(ctx context.Context, log *slog.Logger, cluster *k8s.Cluster, work ...func(context.Context) error) error {
	log.Info("leading")
	if err := cluster.WaitForSync(ctx); err != nil {
		return err
	}
	if err := cluster.Refresh(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		if cluster.WaitUntilUninstalling(ctx) == nil {
			stop(errUninstalling)
		}
	}()
	group, running := errgroup.WithContext(ctx)
	for _, run := range work {
		group.Go(func() error { return run(running) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if errors.Is(context.Cause(ctx), errUninstalling) {
		return errUninstalling
	}
	return nil
}

// identity is unique among the replicas, also when one is restarted in its pod.
func identity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "controller"
	}
	return fmt.Sprintf("%s_%d", host, time.Now().UnixNano())
}

// once is a function for a loop that runs again only when it is kicked.
func once(sync func(context.Context) error) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) { return 0, sync(ctx) }
}
