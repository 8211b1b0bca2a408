package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
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
	// closedInterval is the time between two attempts to delete servers that had connections.
	closedInterval = 10 * time.Second
	// retryTime is the time after which a configuration that was refused is tried again. A port may be free by then, or
	// a worker may have been too slow.
	retryTime = time.Minute
	// commandsInLine is the number of commands in a line that fit the engine's buffer of 16 KiB. The longest command
	// has some 320 characters.
	commandsInLine = 32
	// program is the path of HAProxy.
	program = "/usr/sbin/haproxy"
)

const (
	// maxThreads bounds the threads of an HAProxy.
	maxThreads = 4
	// lessThreads bounds the threads of an HAProxy if more than fewSeats namespaces may have one.
	lessThreads = 2
	fewSeats    = 4
)

// cluster reads the objects of the API server.
type cluster interface {
	Synced() bool
	Objects() config.Objects
}

// agent writes the desired state of the engine. Each namespace that has proxied Services is a tenant.
type agent struct {
	log *slog.Logger
	// dir is the directory that it shares with the engine.
	dir      string
	cluster  cluster
	compiler config.Compiler
	options  config.Options
	// engine has the settings of the HAProxy of each namespace, without the directory.
	engine   haproxy.Engine
	maxSeats int
	bounds   haproxy.Bounds
	// desired returns the desired state of the proxies of all namespaces.
	desired func() haproxy.State
	// program is the path of HAProxy, which checks certificates.
	program      string
	certificates *certificates
	// certified has the pairs and faults of the Services.
	certified secretView
	// areSecretsRead reports whether the API server has answered about each Secret once. Until then a Service could
	// lose the pair that it has.
	areSecretsRead bool
	// written is the last desired state that was written for the engine.
	written string
	// clashLogged has the ports of the last warning about ports.
	clashLogged string
	// unseatedLogged has the namespaces of the last warning about seats.
	unseatedLogged string

	mu      sync.Mutex
	tenants map[string]*tenant
	// begin starts the loop of a tenant.
	begin func(*tenant)
	kick  func()

	// served are the Services of the last run.
	served []haproxy.Service
	// lingers has the time at which each Service ends that is no longer wanted.
	lingers map[lb.Key]time.Time

	reloads *prometheus.CounterVec
}

// newAgent returns an agent that has read nothing yet.
func newAgent(log *slog.Logger, dir string) *agent {
	a := &agent{
		log:       log,
		dir:       dir,
		maxSeats:  maxSeats,
		tenants:   map[string]*tenant{},
		begin:     func(*tenant) {},
		kick:      func() {},
		lingers:   map[lb.Key]time.Time{},
		program:   program,
		certified: secretView{complete: true},
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_proxy_reloads_total",
			Help: "Configurations that the agent gave to the HAProxy of a namespace, by result: " +
				"done or refused. A refused one is a fault of Holdfast.",
		}, []string{"namespace", "result"}),
	}
	a.desired = a.compile
	a.certificates = &certificates{
		log:     log,
		check:   a.checkPair,
		secrets: map[lb.Key]*secret{},
		kept:    map[lb.Key]*pair{},
	}
	return a
}

// agentMain runs the agent with the arguments of the command line, and returns the exit code.
func agentMain(args []string) int {
	var s daemon.Settings
	a := newAgent(nil, shared)
	a.options.ForSpeaker = true
	f := flag.NewFlagSet("holdfast-proxy agent", flag.ContinueOnError)
	s.Define(f, healthListen)
	a.options.Define(f)
	f.IntVar(&a.engine.MaxConn, "max-connections", 1000,
		"most `connections` of all Services of a namespace at once; fewer where the file limit is low")

	parse := func() error {
		if err := s.Parse(f, args); err != nil {
			return err
		}
		if a.options.Proxy.Service == (lb.Key{}) || a.engine.MaxConn < 4 {
			return errors.New("want --proxies, and four connections at least")
		}

		a.maxSeats = a.options.Proxy.MaxNamespaces
		if a.maxSeats < 1 {
			return errors.New("want --proxy-max-namespaces, one at least")
		}

		a.bounds.Own = portsOf(s.MetricsListen, s.HealthListen, s.DebugListen, ":7950")
		return nil
	}
	return daemon.Main("holdfast-proxy", &s, parse, func(ctx context.Context, log *slog.Logger) error {
		k8s.LogTo(log)
		a.log = log
		a.certificates.log = log
		return a.run(ctx, s)
	})
}

// portsOf returns the ports of the addresses that are set.
func portsOf(addresses ...string) (out []uint16) {
	for _, text := range addresses {
		address, err := net.ResolveTCPAddr("tcp", text)
		if err == nil {
			out = append(out, uint16(address.Port))
		}
	}

	return out
}

// run runs the agent until ctx is cancelled.
func (a *agent) run(ctx context.Context, s daemon.Settings) error {
	clients, err := k8s.Connect(s.Kubeconfig, "holdfast-proxy")
	if err != nil {
		return err
	}
	if err := clients.WaitForVersion(ctx, a.log); err != nil {
		return err
	}

	loop := daemon.NewLoop(daemon.LoopConfig{
		Name: "proxy",
		Log:  a.log,
		Sync: a.sync,
	})
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

	group, ctx := errgroup.WithContext(ctx)
	a.certificates.kick = loop.Kick
	a.kick = loop.Kick
	a.begin = func(t *tenant) { t.begin(ctx, group) }
	a.certificates.follow = func(secret lb.Key, receive func(*corev1.Secret, error) error) func() {
		ctx, stop := context.WithCancel(ctx)
		group.Go(func() error {
			objects.FollowSecret(ctx, secret, receive)
			return nil
		})
		return stop
	}

	registry := prometheus.NewRegistry()
	registry.MustRegister(daemon.BuildInfo(), daemon.Stderr.Dropped(), a.reloads, traffic{a})
	metrics := prometheus.Gatherers{registry, prometheus.GathererFunc(gatherEngine)}
	isAlive := func() error { return checkRun(loop.Began()) }
	health := daemon.Health(isAlive, daemon.AlwaysHealthy)

	group.Go(func() error { return objects.Run(ctx) })
	group.Go(func() error { return loop.Run(ctx) })
	group.Go(func() error {
		return s.ServeMetrics(ctx, metrics, clients.MetricsReaders(), k8s.SelfSigned)
	})
	group.Go(func() error {
		return daemon.Serve(ctx, s.HealthListen, health, nil)
	})
	return group.Wait()
}

// measure reads the limits and families of the pod. The engine runs in the same pod, with the same limits.
func (a *agent) measure() {
	var limit unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // it fails for unknown limits only
	a.engine.Files = int(min(limit.Max, 1<<30))
	threads := maxThreads
	if a.maxSeats > fewSeats {
		threads = lessThreads
	}

	a.engine.Threads = min(threads, runtime.NumCPU())
	anyAddress := map[lb.Family]string{lb.IPv4: "0.0.0.0:0", lb.IPv6: "[::]:0"}
	for family, address := range anyAddress {
		l, err := net.Listen("tcp", address)
		if err == nil {
			l.Close()
			a.bounds.Families = append(a.bounds.Families, family)
		}
	}

	slices.Sort(a.bounds.Families)
}

// compile returns the desired state of the proxies of all namespaces, from the objects of the API server.
func (a *agent) compile() haproxy.State {
	state, _ := a.compiler.Compile(a.cluster.Objects(), a.options)
	endpoints, _ := a.compiler.ReadyEndpoints(state, a.options.Proxy) // the controller reports omitted endpoints
	a.certified = a.certificates.resolve(state.Services, time.Now())

	bounds := a.bounds
	bounds.Certificates = a.certified.digests
	services, clash := haproxy.Compile(state.Services, endpoints, bounds)
	text := fmt.Sprint(clash)
	if text != a.clashLogged {
		a.log.Warn("proxies listen on some node ports for other purposes: give these ports of Services other ones",
			"ports", lb.SomeOf(clash))
		a.clashLogged = text
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

// sync sets the desired state of each tenant, and writes the namespaces that have a seat for the engine.
func (a *agent) sync(context.Context) (again time.Duration, err error) {
	if !a.cluster.Synced() {
		return 0, nil // the cluster kicks
	}

	want := a.desired()
	began := time.Now()
	a.areSecretsRead = a.areSecretsRead || a.certified.complete

	if !a.areSecretsRead {
		return 0, nil // each answer kicks
	}

	want.Services = haproxy.Linger(a.served, want.Services, a.lingers, began)
	a.served = want.Services
	for _, end := range a.lingers {
		again = daemon.Sooner(again, end.Sub(began))
	}

	return daemon.Sooner(again, a.certified.again), a.setTenants(want)
}

// setTenants sets the desired states of the tenants, and writes the desired state of the engine.
func (a *agent) setTenants(want haproxy.State) error {
	services := map[string][]haproxy.Service{}
	for _, s := range want.Services {
		namespace := s.Key.Namespace
		services[namespace] = append(services[namespace], s)
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	for name, t := range a.tenants {
		if services[name] == nil {
			t.leave()
			delete(a.tenants, name)
			a.reloads.DeletePartialMatch(prometheus.Labels{"namespace": name})
		}
	}

	a.seatTenants(services, want.Internal)
	if a.written == "" {
		a.clear()
	}

	return a.writeDesired()
}

// seatTenants sets the Services of each tenant. Tenants that have a seat keep it. Others get seats by their names, as
// long as there are seats. The caller holds mu.
func (a *agent) seatTenants(services map[string][]haproxy.Service, internal []netip.Prefix) {
	var unseated []string
	for _, name := range slices.Sorted(maps.Keys(services)) {
		t := a.tenants[name]
		if t == nil && len(a.tenants) >= a.maxSeats {
			unseated = append(unseated, name)
			continue
		}

		isNew := t == nil
		if isNew {
			t = newTenant(a, name)
			a.tenants[name] = t
		}

		t.set(haproxy.State{
			Engine:   t.engine,
			Services: services[name],
			Internal: internal,
		})
		if isNew {
			a.begin(t) // after set, since a first run without Services would close all ports
		}
	}

	text := fmt.Sprint(unseated)
	if len(unseated) > 0 && text != a.unseatedLogged {
		a.log.Warn("namespaces get no HAProxy: all seats are taken",
			"namespaces", lb.SomeOf(unseated), "seats", a.maxSeats)
		a.unseatedLogged = text
	}
}

// clear removes the files that an earlier agent wrote for namespaces that have nothing proxied any more.
func (a *agent) clear() {
	seats, _ := filepath.Glob(filepath.Join(a.dir, "*", configFile)) // the pattern is well-formed
	for _, file := range seats {
		dir := filepath.Dir(file)
		if a.tenants[filepath.Base(dir)] == nil {
			clearSeat(dir)
		}
	}
}

// writeDesired writes the desired state of the engine if it has changed: the namespaces that have a seat, and the
// faults of Services.
func (a *agent) writeDesired() error {
	faults := map[string]lb.Reason{}
	for _, t := range a.tenants {
		maps.Copy(faults, t.faults())
	}

	maps.Copy(faults, a.certified.faults)

	text, _ := json.Marshal(desiredSeats{ // texts can always be encoded
		Namespaces: slices.Sorted(maps.Keys(a.tenants)),
		Faults:     faults,
	})
	if string(text) == a.written {
		return nil
	}
	if err := put(a.dir, desiredFile, string(text)); err != nil {
		return err
	}

	a.written = string(text)
	return nil
}
