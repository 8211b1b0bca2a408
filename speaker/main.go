// Command speaker announces addresses from one node, by ARP and NDP or by BGP.
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

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/httpd"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/link"
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
	nodeName                                        string
	membersPort                                     uint
	logLevel                                        slog.Level
	options                                         config.Options
}

func parse(args []string) (settings, error) {
	var s settings
	f := flag.NewFlagSet("speaker", flag.ContinueOnError)
	f.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig `file`; by default the cluster the process runs in")
	f.StringVar(&s.nodeName, "node-name", os.Getenv("NODE_NAME"), "`name` of the node this speaker runs on")
	f.StringVar(&s.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "`namespace` Holdfast runs in")
	f.StringVar(&s.daemonSet, "daemonset", "holdfast-speaker", "`name` of the speakers' DaemonSet")
	f.StringVar(&s.membersSecret, "members-secret", "holdfast-members", "`name` of the Secret with the key of the speakers' membership")
	f.UintVar(&s.membersPort, "members-port", 7947, "TCP and UDP `port` of the speakers' membership")
	f.StringVar(&s.metricsListen, "metrics-listen", ":9217", "`address` of /metrics")
	f.StringVar(&s.healthListen, "health-listen", "127.0.0.1:9218", "`address` of /healthz and /readyz")
	f.StringVar(&s.debugListen, "debug-listen", "127.0.0.1:9219", "`address` of /debug/state and /debug/pprof")
	f.TextVar(&s.logLevel, "log-level", slog.LevelInfo, "least `level` logged: debug, info, warn or error")
	f.StringVar(&s.options.LoadBalancerClass, "load-balancer-class", "holdfast.dev/lb", "serve Services of this loadBalancerClass")
	f.BoolVar(&s.options.Default, "default-load-balancer", true, "serve Services without a loadBalancerClass too")
	f.BoolVar(&s.options.IgnoreExcludeLabel, "ignore-exclude-label", false, "announce from nodes labelled node.kubernetes.io/exclude-from-external-load-balancers too")
	if err := f.Parse(args); err != nil {
		return settings{}, err
	}
	switch {
	case f.NArg() > 0:
		return settings{}, fmt.Errorf("unknown argument %q", f.Arg(0))
	case s.nodeName == "":
		return settings{}, errors.New("--node-name is not given and NODE_NAME is not set")
	case s.namespace == "":
		return settings{}, errors.New("--namespace is not given and POD_NAMESPACE is not set")
	case s.membersPort == 0 || s.membersPort > 65535:
		return settings{}, fmt.Errorf("--members-port %d is not between 1 and 65535", s.membersPort)
	}
	return s, nil
}

func run() int {
	s, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "speaker:", err)
		return 2
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: s.logLevel})).With("node", s.nodeName)
	k8s.LogTo(log)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, s, log); err != nil {
		log.Error("stopped", "error", err)
		return 1
	}
	return 0
}

// serve runs until ctx is cancelled. The membership goes first then: while the
// others take over, this node still answers for what it owned.
func serve(ctx context.Context, s settings, log *slog.Logger) error {
	clients, err := k8s.Connect(s.kubeconfig, "holdfast-speaker")
	if err != nil {
		return err
	}
	if err := clients.WaitForVersion(ctx, log); err != nil {
		return err
	}
	w := &syncer{node: s.nodeName, options: s.options, log: log}
	work := loop.New(loop.Config{Name: "plan", Log: log, Sync: w.sync})
	report := &reporter{node: s.nodeName, log: log}
	reports := loop.New(loop.Config{Name: "report", Log: log, Sync: report.sync})
	w.planned = reports.Kick

	w.cluster, err = k8s.New(clients, k8s.Config{
		Log: log, Component: "holdfast-speaker", Namespace: s.namespace, DaemonSet: s.daemonSet, Speaker: true, Kick: work.Kick,
	})
	if err != nil {
		return err
	}
	w.links = link.New(log, work.Kick)
	w.layer2 = layer2.New(layer2.Config{Log: log, Links: w.links.Links})
	w.bgp = bgp.New(bgp.Config{Log: log, NodeName: s.nodeName, Kick: reports.Kick})
	report.cluster, report.sessions, report.last = w.cluster, w.bgp.Sessions, &w.last
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), w.layer2, w.bgp, w)

	sinks, after := context.WithCancel(context.WithoutCancel(ctx))
	defer after()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return w.cluster.Run(ctx) })
	group.Go(func() error { return w.links.Run(sinks) })
	group.Go(func() error { return w.layer2.Run(sinks) })
	group.Go(func() error { return w.bgp.Run(sinks) })
	group.Go(func() error { return work.Run(ctx) })
	group.Go(func() error { return reports.Run(ctx) })
	group.Go(func() error { return httpd.Serve(ctx, s.metricsListen, httpd.Metrics(registry)) })
	group.Go(func() error {
		return httpd.Serve(ctx, s.healthListen, httpd.Health(func() error { return w.ready(work.Done()) }))
	})
	group.Go(func() error { return httpd.Serve(ctx, s.debugListen, httpd.Debug(w.debug)) })
	group.Go(func() error {
		defer after()
		return w.runMembers(ctx, s, work.Kick)
	})
	return group.Wait()
}
