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
	"os/signal"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/httpd"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/loop"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
)

func main() { os.Exit(run()) }

// settings are the flags of the process; everything else is a custom resource.
type settings struct {
	kubeconfig, namespace, daemonSet, membersSecret string
	metricsListen, healthListen, debugListen        string
	logLevel                                        slog.Level
	timeout                                         time.Duration
	options                                         config.Options
}

func parse(args []string) (settings, error) {
	var s settings
	f := flag.NewFlagSet("controller", flag.ContinueOnError)
	f.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig `file`; by default the cluster the process runs in")
	f.StringVar(&s.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "`namespace` Holdfast runs in")
	f.StringVar(&s.daemonSet, "daemonset", "holdfast-speaker", "`name` of the speakers' DaemonSet")
	f.StringVar(&s.membersSecret, "members-secret", "holdfast-members", "`name` of the Secret with the key of the speakers' membership, created if absent")
	f.StringVar(&s.metricsListen, "metrics-listen", ":9217", "`address` of /metrics")
	f.StringVar(&s.healthListen, "health-listen", ":9218", "`address` of /healthz and /readyz")
	f.StringVar(&s.debugListen, "debug-listen", "127.0.0.1:9219", "`address` of /debug/state and /debug/pprof")
	f.TextVar(&s.logLevel, "log-level", slog.LevelInfo, "least `level` logged: debug, info, warn or error")
	f.DurationVar(&s.timeout, "timeout", time.Minute, "uninstall: how long to wait for the speakers to withdraw")
	f.StringVar(&s.options.LoadBalancerClass, "load-balancer-class", "holdfast.dev/lb", "serve Services of this loadBalancerClass")
	f.BoolVar(&s.options.Default, "default-load-balancer", true, "serve Services without a loadBalancerClass too")
	f.BoolVar(&s.options.IgnoreExcludeLabel, "ignore-exclude-label", false, "let nodes announce although labelled node.kubernetes.io/exclude-from-external-load-balancers")
	if err := f.Parse(args); err != nil {
		return settings{}, err
	}
	if f.NArg() > 0 {
		return settings{}, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	if s.namespace == "" {
		return settings{}, errors.New("--namespace is not given and POD_NAMESPACE is not set")
	}
	return s, nil
}

func run() int {
	args, task := os.Args[1:], serve
	if len(args) > 0 && args[0] == "uninstall" {
		args, task = args[1:], uninstall
	}
	s, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		return 2
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: s.logLevel}))
	k8s.LogTo(log)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := task(ctx, s, log); err != nil {
		log.Error("stopped", "error", err)
		return 1
	}
	return 0
}

func uninstall(ctx context.Context, s settings, log *slog.Logger) error {
	clients, err := k8s.Connect(s.kubeconfig, "holdfast-uninstall")
	if err != nil {
		return err
	}
	return clients.Uninstall(ctx, log, s.namespace, s.daemonSet, s.timeout)
}

// serve runs until ctx is cancelled. Watches and pages run in every replica, the
// loop in the leader only.
func serve(ctx context.Context, s settings, log *slog.Logger) error {
	clients, err := k8s.Connect(s.kubeconfig, "holdfast-controller")
	if err != nil {
		return err
	}
	if err := clients.WaitForVersion(ctx, log); err != nil {
		return err
	}
	syncer := &syncer{options: s.options, log: log}
	work := loop.New(loop.Config{Name: "assign", Log: log, Sync: syncer.sync})
	cluster, err := k8s.New(clients, k8s.Config{
		Log: log, Component: "holdfast-controller", Namespace: s.namespace, DaemonSet: s.daemonSet, Kick: work.Kick,
	})
	if err != nil {
		return err
	}
	syncer.cluster = cluster
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), syncer)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return cluster.Run(ctx) })
	group.Go(func() error { return httpd.Serve(ctx, s.metricsListen, httpd.Metrics(registry)) })
	group.Go(func() error { return httpd.Serve(ctx, s.healthListen, httpd.Health(syncer.ready)) })
	group.Go(func() error { return httpd.Serve(ctx, s.debugListen, httpd.Debug(syncer.debug)) })
	group.Go(func() error {
		return cluster.Lead(ctx, identity(), func(ctx context.Context) error {
			return lead(ctx, s, log, cluster, work)
		})
	})
	return group.Wait()
}

// lead works as the leader. It first reads past its caches, since its
// predecessor's last writes may not have reached them.
func lead(ctx context.Context, s settings, log *slog.Logger, cluster *k8s.Cluster, work *loop.Loop) error {
	log.Info("leading")
	if err := cluster.WaitForSync(ctx); err != nil {
		return err
	}
	if err := cluster.Refresh(ctx); err != nil {
		return err
	}
	if err := cluster.EnsureMembersKey(ctx, s.membersSecret); err != nil {
		return err
	}
	return work.Run(ctx)
}

// identity is unique among the replicas, also when one is restarted in its pod.
func identity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "controller"
	}
	return fmt.Sprintf("%s_%d", host, time.Now().UnixNano())
}
