package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/haproxy"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

const (
	// closedInterval is how often the agent tries to delete servers that had connections.
	closedInterval = 10 * time.Second
	// retryTime is after how long a configuration that was refused is tried again: a port may be free, or a worker may
	// have been too slow.
	retryTime = time.Minute
	// commandsInLine in a line fit the engine's buffer of 16 KiB: the longest has some 320 characters.
	commandsInLine = 32
	// maxThreads are HAProxy's; fewer where there are fewer processors.
	maxThreads = 4
	program    = "/usr/sbin/haproxy"
)

type cluster interface {
	Synced() bool
	Objects() config.Objects
}

// agent gives the engine what the cluster wants of it.
type agent struct {
	log      *slog.Logger
	dir      string
	cluster  cluster
	compiler config.Compiler
	options  config.Options
	engine   haproxy.Engine
	bounds   haproxy.Bounds
	// desired is what the cluster wants of the proxy.
	desired func() haproxy.State
	// program is HAProxy, which looks at certificates.
	program      string
	certificates *certificates
	// certified is what the Services have of their Secrets, and reported what the engine was given of it.
	certified certified
	reported  string
	// read: the API server has answered about each Secret once. Until then a Service could lose the pair that it has.
	read bool

	// inForce are the Services of the running worker as far as this agent knows; valid while it shows the hash.
	inForce []haproxy.Service
	hash    string
	// refused is the hash of a configuration that the engine did not take.
	refused string
	budgets haproxy.Budgets
	last    time.Time // reload
	since   time.Time // an edit waits; zero for none
	written string    // what is in the file
	logged  string

	// served are the Services of the last run, and lingers when each of them ends that is no longer wanted.
	served  []haproxy.Service
	lingers map[lb.Key]time.Time

	reloads *prometheus.CounterVec
	waiting prometheus.Gauge
}

func newAgent(log *slog.Logger, dir string) *agent {
	a := &agent{
		log:       log,
		dir:       dir,
		budgets:   haproxy.Budgets{},
		lingers:   map[lb.Key]time.Time{},
		program:   program,
		certified: certified{complete: true},
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_proxy_reloads_total",
			Help: "Configurations that the agent gave to HAProxy, by result: done or refused. A refused one is a fault of Holdfast.",
		}, []string{"result"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_proxy_waiting_namespaces",
			Help: "Namespaces whose edits wait, because they spent their budget of edits.",
		}),
	}
	a.desired = a.want
	a.certificates = &certificates{log: log, takes: a.take, secrets: map[lb.Key]*secret{}, kept: map[lb.Key]*pair{}}
	a.reloads.WithLabelValues("done")
	a.reloads.WithLabelValues("refused")
	return a
}

func agentMain(args []string) int {
	var s daemon.Settings
	options := config.Options{Speaks: true}
	a := newAgent(nil, shared)
	f := flag.NewFlagSet("holdfast-proxy agent", flag.ContinueOnError)
	s.Define(f, healthListen)
	options.Define(f)
	f.IntVar(
		&a.engine.MaxConn,
		"max-connections",
		20000,
		"most `connections` of all Services at once, of which one Service has a "+
			"quarter; fewer where the file limit is low",
	)
	var own []uint16
	return daemon.Main("holdfast-proxy", &s, func() error {
		if err := s.Parse(f, args); err != nil {
			return err
		}
		if options.Proxy.Service == (lb.Key{}) || a.engine.MaxConn < 4 {
			return errors.New("want --proxies, and four connections at least")
		}
		for _, listen := range []string{s.MetricsListen, s.HealthListen, s.DebugListen, ":7950"} {
			if a, err := net.ResolveTCPAddr("tcp", listen); err == nil {
				own = append(own, uint16(a.Port))
			}
		}
		return nil
	}, func(ctx context.Context, log *slog.Logger) error {
		k8s.LogTo(log)
		a.log, a.certificates.log, a.options, a.bounds.Own = log, log, options, own
		return a.run(ctx, s)
	})
}

func (a *agent) run(ctx context.Context, s daemon.Settings) error {
	clients, err := k8s.Connect(s.Kubeconfig, "holdfast-proxy")
	if err != nil {
		return err
	}
	if err := clients.WaitForVersion(ctx, a.log); err != nil {
		return err
	}
	loop := daemon.NewLoop(daemon.LoopConfig{Name: "proxy", Log: a.log, Sync: a.sync})
	objects := k8s.New(clients, k8s.Config{
		Log:       a.log,
		Component: "holdfast-proxy",
		Namespace: s.Namespace,
		Proxy:     true,
		Proxies:   a.options.Proxy.Service,
		Kick:      loop.Kick,
	})
	a.cluster = objects
	a.measure()
	_ = os.Remove(filepath.Join(a.dir, tryFile)) // of an agent that was killed
	registry := prometheus.NewRegistry()
	registry.MustRegister(daemon.BuildInfo(), daemon.Stderr.Dropped(), a.reloads, a.waiting, traffic{a})
	group, ctx := errgroup.WithContext(ctx)
	a.certificates.kick = loop.Kick
	a.certificates.follow = func(secret lb.Key, see func(*corev1.Secret, error) error) func() {
		ctx, stop := context.WithCancel(ctx)
		group.Go(func() error { objects.FollowSecret(ctx, secret, see); return nil })
		return stop
	}
	group.Go(func() error { return objects.Run(ctx) })
	group.Go(func() error { return loop.Run(ctx) })
	group.Go(func() error { return s.ServeMetrics(ctx, registry, clients.MetricsReaders(), k8s.SelfSigned) })
	group.Go(func() error {
		return daemon.Serve(
			ctx,
			s.HealthListen,
			daemon.Health(func() error { return alive(loop.Began()) }, daemon.Runs),
			nil,
		)
	})
	return group.Wait()
}

// measure finds out what the pod has: the engine runs in the same, with the same limits.
func (a *agent) measure() {
	var limit unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // it fails for unknown limits only
	a.engine.Directory, a.engine.Files, a.engine.Threads = a.dir, int(
		min(limit.Max, 1<<30),
	), min(
		maxThreads,
		runtime.NumCPU(),
	)
	for family, address := range map[lb.Family]string{lb.IPv4: "0.0.0.0:0", lb.IPv6: "[::]:0"} {
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			a.bounds.Families = append(a.bounds.Families, family)
		}
	}
	slices.Sort(a.bounds.Families)
}

func (a *agent) want() haproxy.State {
	state, _ := a.compiler.Compile(a.cluster.Objects(), a.options)
	bounds := a.bounds
	endpoints, _ := a.compiler.ReadyEndpoints(state, a.options.Proxy.Service) // the controller reports what is left out
	a.certified = a.certificates.look(state.Services, time.Now())
	bounds.Certificates = a.certified.digests
	services, clash := haproxy.Compile(state.Services, endpoints, bounds)
	if text := fmt.Sprint(clash); text != a.logged {
		a.log.Warn(
			"proxies listen on some node ports for other purposes: give these ports of Services other ones",
			"ports",
			lb.SomeOf(clash),
		)
		a.logged = text
	}
	want := haproxy.State{Engine: a.engine, Services: services}
	for _, n := range state.Nodes {
		want.Internal = append(want.Internal, n.Pods...)
		for _, address := range n.Addresses {
			want.Internal = append(want.Internal, netip.PrefixFrom(address, address.BitLen()))
		}
	}
	return want
}

// sync gives the engine what changed: endpoints at once, and all else by a reload when its time has come.
func (a *agent) sync(ctx context.Context) (again time.Duration, err error) {
	if !a.cluster.Synced() {
		return 0, nil // it kicks
	}
	want, began := a.desired(), time.Now()
	if a.read = a.read || a.certified.complete; !a.read {
		return 0, nil // each answer kicks
	}
	if err := a.report(); err != nil {
		return 0, err
	}
	want.Services = haproxy.Linger(a.served, want.Services, a.lingers, began)
	a.served = want.Services
	again, err = a.give(ctx, want)
	again = daemon.Sooner(again, a.certified.again)
	for _, end := range a.lingers {
		again = daemon.Sooner(again, end.Sub(began))
	}
	return again, err
}

// report gives the engine what is wrong with Secrets, for who asks it.
func (a *agent) report() error {
	text, _ := json.Marshal(a.certified.faults) // texts
	if len(a.certified.faults) == 0 {
		text = nil
	}
	if a.reported == string(text) {
		return nil
	}
	if err := put(a.dir, faultsFile, string(text)); err != nil {
		return err
	}
	a.reported = string(text)
	return nil
}

func (a *agent) give(ctx context.Context, want haproxy.State) (time.Duration, error) {
	running, err := a.running(ctx)
	if a.hash != running {
		a.inForce, a.hash = nil, ""
	}
	c := want.Config()
	if err != nil { // the engine starts with the file
		return lookInterval, a.write(want, c)
	}
	if c.Hash == running {
		a.inForce, a.hash, a.since = want.Services, running, time.Time{}
		a.waiting.Set(0)
		return a.endpoints(ctx, want, c)
	}
	return a.edit(ctx, want, c)
}

// edit reloads, or waits.
func (a *agent) edit(ctx context.Context, want haproxy.State, c haproxy.Config) (time.Duration, error) {
	began := time.Now()
	old, err := a.old(ctx)
	if err != nil {
		return 0, err
	}
	var edited, held []string
	if a.hash != "" {
		want.Services, edited, held = haproxy.Hold(a.inForce, want.Services, a.budgets, old, began)
	}
	a.waiting.Set(float64(len(held)))
	if len(held) > 0 {
		c = want.Config()
	}
	if c.Hash == a.hash || c.Hash == a.refused && began.Sub(a.last) < retryTime { // all edits are held
		again, err := a.refresh(ctx, want)
		return daemon.Sooner(again, 5*time.Second), err
	}
	if a.since.IsZero() {
		a.since = began
	}
	if wait := haproxy.Due(old, a.last, a.since).Sub(began); wait > 0 {
		again, err := a.refresh(ctx, want)
		return daemon.Sooner(again, min(wait, time.Second)), err // an old worker may end
	}
	if err := a.reload(ctx, want, c); err != nil {
		return 0, err
	}
	a.budgets.Spend(edited, began)
	a.since = time.Time{}
	return time.Millisecond, nil // endpoints may have changed since
}

// refresh gives the running worker its endpoints while an edit waits.
func (a *agent) refresh(ctx context.Context, want haproxy.State) (time.Duration, error) {
	if a.hash == "" {
		return 0, nil
	}
	want.Services = haproxy.Refresh(a.inForce, want.Services)
	c := want.Config()
	if c.Hash != a.hash {
		return 0, nil // nodes changed too
	}
	return a.endpoints(ctx, want, c)
}

// endpoints gives the running worker its endpoints, without a reload, and then the file.
func (a *agent) endpoints(ctx context.Context, want haproxy.State, c haproxy.Config) (again time.Duration, err error) {
	commands, err := a.commands(ctx, want)
	if len(commands) > 0 {
		for line := range slices.Chunk(commands, commandsInLine) {
			if _, err := a.talk(ctx, workerSocket, strings.Join(line, ";")); err != nil {
				return 0, err
			}
		}
		commands, err = a.commands(ctx, want)
	}
	if err != nil {
		return 0, err
	}
	if !haproxy.Settled(commands) {
		a.log.Warn(
			"the engine did not take a change of endpoints: it gets it by a reload",
			"commands",
			commands[:min(len(commands), 5)],
		)
		return 0, a.reload(ctx, want, c)
	}
	if len(commands) > 0 {
		again = closedInterval
	}
	return again, a.write(want, c)
}

func (a *agent) commands(ctx context.Context, want haproxy.State) ([]string, error) {
	text, err := a.talk(ctx, workerSocket, "show servers state")
	if err != nil {
		return nil, err
	}
	servers, err := haproxy.ParseServers(text)
	if err != nil {
		return nil, err
	}
	return want.Commands(servers), nil
}

// reload has a new worker take over.
func (a *agent) reload(ctx context.Context, want haproxy.State, c haproxy.Config) error {
	states, err := a.talk(ctx, workerSocket, "show servers state")
	if err != nil {
		return err
	}
	// The new worker begins with what the checks found.
	if err := errors.Join(put(a.dir, statesFile, strings.TrimLeft(states, "\n")), a.write(want, c)); err != nil {
		return err
	}
	began := time.Now()
	answer, err := a.talk(ctx, masterSocket, "reload")
	if err != nil {
		return err
	}
	running, err := a.running(ctx)
	if err != nil {
		return err
	}
	a.last = time.Now()
	if running != c.Hash {
		a.reloads.WithLabelValues("refused").Inc()
		a.log.Error(
			"the engine refused a configuration: the old one stays in force",
			"configuration",
			c.Hash,
			"answer",
			answer,
		)
		a.refused = c.Hash // the next run writes what is in force into the file
		return nil
	}
	a.reloads.WithLabelValues("done").Inc()
	a.log.Info(
		"the engine has another configuration",
		"configuration",
		c.Hash,
		"services",
		len(want.Services),
		"after",
		time.Since(began),
	)
	a.inForce, a.hash, a.refused = want.Services, running, ""
	a.clean(c)
	return nil
}
