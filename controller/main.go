// Command controller assigns addresses from pools to Services of type LoadBalancer and to FloatingIPs. It is the only
// writer of addresses.
//
// It reads the objects of the API server (package k8s), compiles them (config), decides (ipam) and writes statuses,
// conditions and Events. In its other loops it withdraws the endpoints on dead nodes (nodelifecycle) and rotates the
// key of the speakers' membership (keyed). Several replicas may run; only the leader decides and writes.
//
//	controller                # run until a signal
//	controller uninstall      # withdraw all announcements and remove the finalizers
//	controller crds           # write the custom resource definitions
//
// A run about a new Service, where pool "lan" has 192.0.2.0/24:
//
//	read     Service default/web of type LoadBalancer, IPAddressPool lan
//	compile  lb.Service{Key: default/web, Families: [IPv4]}, lb.Pool{Name: lan}
//	decide   ipam.Assignment{Addresses: [192.0.2.0], Pools: [lan], Reason: Assigned}
//	compute  serviceStatus: the address, condition AddressAssigned=True, two finalizers, an Event
//	write    a patch of the Service, the Event, the counts of the pool
//
// The status of a Service is a function of its serviceInputs. Package memo remembers the result, so a Service that does
// not change costs a comparison.
//
// It must not announce addresses: that is the speakers' task.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/nodelifecycle"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
)

func main() { os.Exit(run()) }

// settings are the flags of the process.
type settings struct {
	daemon.Settings
	Options config.Options
	// nodeName is the node that the process runs on. A standby checks whether the speakers miss the leader's node.
	nodeName string
	// timeout bounds the wait of an uninstall.
	timeout time.Duration
	// crds is the directory with the custom resource definitions.
	crds string
	// withdraw reports whether endpoints on dead nodes are withdrawn.
	withdraw bool
	// limit bounds the nodes whose endpoints are withdrawn at the same time.
	limit nodelifecycle.Limit
}

// define adds the flags to f.
func (s *settings) define(f *flag.FlagSet) {
	s.Define(f, ":9218")
	s.Options.Define(f)

	f.BoolVar(&s.withdraw, "withdraw-dead-endpoints", true,
		"mark pods of Services as not ready if more than half of all speakers cannot reach their node")
	f.TextVar(&s.limit, "dead-endpoints-max-nodes", nodelifecycle.Limit{Percent: 10},
		"maximum number of `nodes` whose pods are marked at the same time, as a number or a percentage of all nodes")

	f.IntVar(&s.Options.OpenStack.MaxShared, "openstack-max-shared", 2,
		"maximum number of `Services` that share an address by OpenStack's load-balancer-id")
	f.BoolVar(&s.Options.OpenStack.Internal, "openstack-internal", false,
		"serve Services from internal pools unless holdfast.dev/internal says otherwise")
	f.BoolVar(&s.Options.OpenStack.AnnotateAll, "openstack-annotate-all", false,
		"write OpenStack's load-balancer-id and load-balancer-address on all Services")

	f.StringVar(&s.nodeName, "node-name", os.Getenv("NODE_NAME"),
		"`name` of the node that this controller runs on; by default the environment variable NODE_NAME. "+
			"Without it another controller leads 15 s after the node's death and not after 2.5 s")
	f.DurationVar(&s.timeout, "timeout", time.Minute,
		"uninstall: `time` to wait for the speakers to withdraw all announcements")
	f.StringVar(&s.crds, "from", "/crds", "crds: `directory` with the custom resource definitions to write")
}

// run runs the task that the first argument names, and returns the exit code.
func run() int {
	tasks := map[string]func(context.Context, k8s.Clients, settings, *slog.Logger) error{
		"controller": serve,
		"uninstall":  uninstall,
		"crds":       writeCRDs,
	}
	task := "controller"
	args := os.Args[1:]
	if len(args) > 0 && tasks[args[0]] != nil {
		task = args[0]
		args = args[1:]
	}

	var s settings
	f := flag.NewFlagSet("controller", flag.ContinueOnError)
	s.define(f)
	parse := func() error { return s.Parse(f, args) }

	return daemon.Main("controller", &s.Settings, parse, func(ctx context.Context, log *slog.Logger) error {
		k8s.LogTo(log)
		clients, err := k8s.Connect(s.Kubeconfig, "holdfast-"+task)
		if err != nil {
			return err
		}

		return tasks[task](ctx, clients, s, log)
	})
}

// uninstall withdraws all announcements and removes the finalizers.
func uninstall(ctx context.Context, clients k8s.Clients, s settings, log *slog.Logger) error {
	return clients.Uninstall(ctx, log, s.Namespace, s.DaemonSet, s.timeout)
}

// writeCRDs writes the custom resource definitions to the API server.
func writeCRDs(ctx context.Context, clients k8s.Clients, s settings, log *slog.Logger) error {
	return clients.WriteCRDs(ctx, log, s.crds)
}

// serve runs until ctx is cancelled. Watches and HTTP pages run in every replica, the loops only in the leader.
func serve(ctx context.Context, clients k8s.Clients, s settings, log *slog.Logger) error {
	if err := clients.WaitForVersion(ctx, log); err != nil {
		return err
	}

	assign, lifecycle, work := assemble(clients, s, log)
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		daemon.BuildInfo(),
		daemon.Stderr.Dropped(),
		assign,
		lifecycle,
	)
	health := daemon.Health(daemon.AlwaysHealthy, assign.ready)
	debug := daemon.Debug(func() any {
		return assign.last.Load()
	})

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return assign.cluster.Run(ctx)
	})
	group.Go(func() error {
		return s.ServeMetrics(ctx, registry, clients.MetricsReaders(), k8s.SelfSigned)
	})
	group.Go(func() error {
		return daemon.Serve(ctx, s.HealthListen, health, nil)
	})
	group.Go(func() error {
		return daemon.Serve(ctx, s.DebugListen, debug, nil)
	})
	group.Go(func() error {
		return campaign(ctx, log, assign.cluster, s.nodeName, work)
	})
	return group.Wait()
}

// assemble constructs the parts of the process, and starts none. work are the functions that the leader runs. The
// cluster kicks the loops, but not before it runs.
func assemble(
	clients k8s.Clients,
	s settings,
	log *slog.Logger,
) (assign *syncer, lifecycle *nodelifecycle.Controller, work []func(context.Context) error) {
	var observe, withdraw *daemon.Loop
	cluster := k8s.New(clients, k8s.Config{
		Log:       log,
		Component: "holdfast-controller",
		Namespace: s.Namespace,
		DaemonSet: s.DaemonSet,
		Endpoints: s.withdraw || s.Options.Proxies(),
		Proxies:   s.Options.Proxy.Service,
		Kick:      func() { assign.loop.Kick() },
		KickStates: func() {
			withdraw.Kick()
			observe.Kick()
		},
	})
	assign = newSyncer(cluster, s.Options, log)
	lifecycle = nodelifecycle.New(cluster, s.Options.Serves, s.limit, log)

	observe = daemon.NewLoop(daemon.LoopConfig{
		Name:        "speakers",
		Log:         log,
		MinInterval: observeInterval,
		Sync: func(context.Context) (time.Duration, error) {
			assign.requestObserve()
			return 2 * observeInterval, nil // reports expire without a change
		},
	})
	withdraw = daemon.NewLoop(daemon.LoopConfig{
		Name:        "nodelifecycle",
		Log:         log,
		MinInterval: nodelifecycle.MinInterval,
		Sync:        lifecycle.Sync,
	})

	rotateKeys := func(ctx context.Context) error {
		return newKeyRotation(cluster, s.MembersSecret, log).run(ctx)
	}
	work = []func(context.Context) error{
		assign.lead,
		afterSpeakerStates(cluster, observe.Run),
		afterSpeakerStates(cluster, rotateKeys),
	}
	if s.withdraw {
		withdrawEndpoints := func(ctx context.Context) error {
			return lifecycle.Lead(ctx, withdraw.Run)
		}
		work = append(work, afterSpeakerStates(cluster, withdrawEndpoints))
	}

	return assign, lifecycle, work
}

// afterSpeakerStates makes work wait until the SpeakerStates were listed. Before that it would find no suspicion, no
// conflict, and no speaker that has a key.
func afterSpeakerStates(cluster *k8s.Cluster, work func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if cluster.WaitForSpeakerStates(ctx) != nil {
			return nil // cancelled
		}
		return work(ctx)
	}
}

// errUninstalling ends a leader's work while Holdfast is being uninstalled.
var errUninstalling = errors.New("uninstalling")

// campaign makes this replica lead whenever it is elected, until ctx is cancelled.
func campaign(
	ctx context.Context,
	log *slog.Logger,
	cluster *k8s.Cluster,
	node string,
	work []func(context.Context) error,
) error {
	var watch nodelifecycle.NodeWatch
	isMissed := func(node string) bool {
		states := cluster.SpeakerStates()
		expected := cluster.ExpectedSpeakers()
		return watch.IsMissed(time.Now(), states, expected, node)
	}

	for {
		err := cluster.Lead(ctx, k8s.Candidate{
			Identity: identity(),
			Node:     node,
			Missed:   isMissed,
			Lead: func(ctx context.Context) error {
				return lead(ctx, log, cluster, work)
			},
		})
		if !errors.Is(err, errUninstalling) {
			return err
		}

		// The Lease is released while we still have permission to write it. Otherwise a later installation would wait
		// for it to expire.
		if err := cluster.WaitUninstalling(ctx, false); err != nil {
			return nil
		}
	}
}

// lead works as the leader. It first reads past its caches, which may lack its predecessor's last writes.
func lead(
	ctx context.Context,
	log *slog.Logger,
	cluster *k8s.Cluster,
	work []func(context.Context) error,
) error {
	log.Info("leading")
	if err := cluster.WaitForSync(ctx); err != nil {
		return err
	}
	if err := cluster.Refresh(ctx); err != nil {
		return err
	}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if cluster.WaitUninstalling(ctx, true) != nil {
			return nil // cancelled
		}
		return errUninstalling
	})
	for _, run := range work {
		group.Go(func() error { return run(ctx) })
	}

	return group.Wait()
}

// identity returns a name that is unique among the replicas, even after a restart within the same pod.
func identity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "controller"
	}
	return fmt.Sprintf("%s_%d", host, time.Now().UnixNano())
}
