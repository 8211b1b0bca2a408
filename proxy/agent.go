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
	// closedInterval is how often the agent tries to delete servers that had connections.
	closedInterval = 10 * time.Second
	// retryTime is after how long a configuration that was refused is tried again: a port may be free, or a worker may
	// have been too slow.
	retryTime = time.Minute
	// commandsInLine in a line fit the engine's buffer of 16 KiB: the longest has some 320 characters.
	commandsInLine = 32
	// maxThreads are an HAProxy's, and lessThreads where more than fewSeats namespaces may have one; fewer where there
	// are fewer processors.
	maxThreads, lessThreads, fewSeats = 4, 2, 4
	program                           = "/usr/sbin/haproxy"
)

type cluster interface {
	Synced() bool
	Objects() config.Objects
}

// agent gives the engine what the cluster wants of it: each namespace that has proxied Services is a tenant.
type agent struct {
	log      *slog.Logger
	dir      string
	cluster  cluster
	compiler config.Compiler
	options  config.Options
	// engine is how the HAProxy of a namespace runs, but for its directory.
	engine   haproxy.Engine
	maxSeats int
	bounds   haproxy.Bounds
	// desired is what the cluster wants of the proxies, of all namespaces.
	desired func() haproxy.State
	// program is HAProxy, which looks at certificates.
	program      string
	certificates *certificates
	// certified is what the Services have of their Secrets.
	certified certified
	// read: the API server has answered about each Secret once. Until then a Service could lose the pair that it has.
	read bool
	// told is what the engine was given last.
	told string
	// logged are the ports, and unseated the namespaces, of the last warning.
	logged, unseated string

	mu      sync.Mutex
	tenants map[string]*tenant
	// begin starts the loop of a tenant.
	begin func(*tenant)
	kick  func()

	// served are the Services of the last run, and lingers when each of them ends that is no longer wanted.
	served  []haproxy.Service
	lingers map[lb.Key]time.Time

	reloads *prometheus.CounterVec
}

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
		certified: certified{complete: true},
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_proxy_reloads_total",
			Help: "Configurations that the agent gave to the HAProxy of a namespace, by result: " +
				"done or refused. A refused one is a fault of Holdfast.",
		}, []string{"namespace", "result"}),
	}
	a.desired = a.want
	a.certificates = &certificates{log: log, takes: a.take, secrets: map[lb.Key]*secret{}, kept: map[lb.Key]*pair{}}
	return a
}

func agentMain(args []string) int {
	var s daemon.Settings
	options := config.Options{ForSpeaker: true}
	a := newAgent(nil, shared)
	f := flag.NewFlagSet("holdfast-proxy agent", flag.ContinueOnError)
	s.Define(f, healthListen)
	options.Define(f)
	f.IntVar(
		&a.engine.MaxConn,
		"max-connections",
		1000,
		"most `connections` of all Services of a namespace at once; fewer where the file limit is low",
	)
	var own []uint16
	return daemon.Main("holdfast-proxy", &s, func() error {
		if err := s.Parse(f, args); err != nil {
			return err
		}
		if options.Proxy.Service == (lb.Key{}) || a.engine.MaxConn < 4 {
			return errors.New("want --proxies, and four connections at least")
		}
		if a.maxSeats = options.Proxy.MaxNamespaces; a.maxSeats < 1 {
			return errors.New("want --proxy-max-namespaces, one at least")
		}
		for _, listen := range []string{s.MetricsListen, s.HealthListen, s.DebugListen, ":7950"} {
			if a, err := net.ResolveTCPAddr("tcp", listen); err == nil {
				own = append(own, uint16(a.Port))
			}
		}
		return nil
	}, func(ctx context.Context, log *slog.Logger) error {
		k8s.LogTo(log)
		a.log = log
		a.certificates.log = log
		a.options = options
		a.bounds.Own = own
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
	registry.MustRegister(daemon.BuildInfo(), daemon.Stderr.Dropped(), a.reloads, traffic{a})
	group, ctx := errgroup.WithContext(ctx)
	a.certificates.kick, a.kick = loop.Kick, loop.Kick
	a.begin = func(t *tenant) {
		loop := daemon.NewLoop(daemon.LoopConfig{Name: "proxy " + t.namespace, Log: t.log, Sync: t.sync})
		ctx, stop := context.WithCancel(ctx)
		t.kick, t.stop = loop.Kick, stop
		group.Go(func() error { return loop.Run(ctx) })
	}
	a.certificates.follow = func(secret lb.Key, see func(*corev1.Secret, error) error) func() {
		ctx, stop := context.WithCancel(ctx)
		group.Go(func() error { objects.FollowSecret(ctx, secret, see); return nil })
		return stop
	}
	group.Go(func() error { return objects.Run(ctx) })
	group.Go(func() error { return loop.Run(ctx) })
	metrics := prometheus.Gatherers{registry, prometheus.GathererFunc(gatherEngine)}
	group.Go(func() error { return s.ServeMetrics(ctx, metrics, clients.MetricsReaders(), k8s.SelfSigned) })
	group.Go(func() error {
		return daemon.Serve(
			ctx,
			s.HealthListen,
			daemon.Health(func() error { return alive(loop.Began()) }, daemon.AlwaysHealthy),
			nil,
		)
	})
	return group.Wait()
}

// measure finds out what the pod has: the engine runs in the same, with the same limits.
func (a *agent) measure() {
	var limit unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // it fails for unknown limits only
	a.engine.Files = int(min(limit.Max, 1<<30))
	threads := maxThreads
	if a.maxSeats > fewSeats {
		threads = lessThreads
	}
	a.engine.Threads = min(threads, runtime.NumCPU())
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
	endpoints, _ := a.compiler.ReadyEndpoints(state, a.options.Proxy) // the controller reports what is left out
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

// sync gives each tenant what the cluster wants of it, and the engine the namespaces that have a seat.
func (a *agent) sync(context.Context) (again time.Duration, err error) {
	if !a.cluster.Synced() {
		return 0, nil // it kicks
	}
	want, began := a.desired(), time.Now()
	if a.read = a.read || a.certified.complete; !a.read {
		return 0, nil // each answer kicks
	}
	want.Services = haproxy.Linger(a.served, want.Services, a.lingers, began)
	a.served = want.Services
	for _, end := range a.lingers {
		again = daemon.Sooner(again, end.Sub(began))
	}
	return daemon.Sooner(again, a.certified.again), a.seat(want)
}

// seat gives tenants their states. Those that have a seat keep it; others get one by their names, as long as there are.
func (a *agent) seat(want haproxy.State) error {
	services := map[string][]haproxy.Service{}
	for _, s := range want.Services {
		services[s.Key.Namespace] = append(services[s.Key.Namespace], s)
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
		t.set(haproxy.State{Engine: t.engine, Services: services[name], Internal: want.Internal})
		if isNew {
			a.begin(t) // its first run must know what is wanted: nothing would close all ports
		}
	}
	if text := fmt.Sprint(unseated); len(unseated) > 0 && text != a.unseated {
		a.log.Warn("namespaces get no HAProxy: all seats are taken", "namespaces", lb.SomeOf(unseated), "seats", a.maxSeats)
		a.unseated = text
	}
	if a.told == "" {
		a.clear()
	}
	return a.tell()
}

// clear removes what an earlier agent wrote for namespaces that have nothing proxied any more.
func (a *agent) clear() {
	seats, _ := filepath.Glob(filepath.Join(a.dir, "*", configFile)) // the pattern is well-formed
	for _, file := range seats {
		if dir := filepath.Dir(file); a.tenants[filepath.Base(dir)] == nil {
			clearSeat(dir)
		}
	}
}

// tell gives the engine the namespaces that have a seat, and what speakers are to know.
func (a *agent) tell() error {
	faults := map[string]lb.Reason{}
	for _, t := range a.tenants {
		maps.Copy(faults, t.faults())
	}
	maps.Copy(faults, a.certified.faults)
	text, _ := json.Marshal(desired{Namespaces: slices.Sorted(maps.Keys(a.tenants)), Faults: faults}) // texts
	if string(text) == a.told {
		return nil
	}
	if err := put(a.dir, desiredFile, string(text)); err != nil {
		return err
	}
	a.told = string(text)
	return nil
}
