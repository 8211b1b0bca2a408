package main

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/divert"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/kernel"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	"github.com/holdfast-lb/holdfast/internal/node/owners"
	"github.com/holdfast-lb/holdfast/internal/peering"
	"github.com/holdfast-lb/holdfast/internal/podnetwork"
	"github.com/holdfast-lb/holdfast/internal/report"
	"k8s.io/client-go/rest"

	"github.com/holdfast-lb/holdfast/internal/bgp/engine"
)

// engineArgument makes the test's program run as a BGP engine.
const engineArgument = "bgp-engine"

// testEngine is the Command of bgp.Config in tests.
var testEngine = []string{os.Args[0], engineArgument}

func TestMain(m *testing.M) {
	if !slices.Contains(os.Args, engineArgument) {
		os.Exit(m.Run())
	}
	if engine.Serve() != nil {
		os.Exit(1)
	}
}

// newTestLoop returns a speaker of node w1 that filters and relays, without API server, plan loop and membership.
func newTestLoop(links func() []lb.Interface) *Loop {
	log := slog.New(slog.DiscardHandler)
	w := &Loop{node: "w1", log: log, stops: stops{markRemoved: lb.NewSignal()}}
	w.sources = Sources{
		Membership: &Membership{},
		Liveness:   liveness.New(liveness.Config{Log: log, Links: links, SilenceChanged: func() {}, KickProbe: func() {}}),
		Boot:       kubeproxy.New(kubeproxy.Config{Log: log}),
		PodNetwork: podnetwork.New(podnetwork.Config{Log: log}),
		Endpoints:  kubeproxy.NewEndpoints(log, func() {}),
		Proxies:    divert.NewAsker(log, func() {}),
	}
	w.sinks = Sinks{
		Filter:    newTestGuard(false),
		Relays:    NewRelays(log, Settings{Relay: true}, links, func() {}),
		Outgoing:  NewOutgoing(log, Settings{}, kernel.New(log, nil, func() {}), links, func() {}),
		Divert:    divert.New(log, func() {}),
		Owners:    owners.New(owners.Config{Log: log}),
		BGP:       bgp.New(bgp.Config{Log: log, Kick: func() {}, Command: testEngine}),
		HeadStart: kubeproxy.NewHeadStart(log),
		Conntrack: kubeproxy.NewSweeper(log),
	}
	w.sinks.Layer2 = layer2.New(layer2.Config{
		Log: log, Links: links, Gateways: func(int) []lb.Neighbour { return nil }, Changed: func() { w.sinks.Report.Kick() },
		Refused: func() {},
	})
	w.sinks.Peering = peering.New(peering.Config{Log: log, BGP: w.sinks.BGP, Links: links, Changed: func() {}})
	return w
}

// atCluster gives a speaker an API server, and what needs one. It returns the loop that asks whether nodes are alive.
func (w *Loop) atCluster(t testing.TB, api *rest.Config) (prober *daemon.Loop) {
	t.Helper()
	clients, err := k8s.ClientsFor(api, w.node)
	must(t, err)
	w.sources.Cluster = k8s.New(clients, k8s.Config{
		Log: w.log, Component: w.node, Namespace: "holdfast", DaemonSet: "speaker", Speaker: true,
		Kick: func() { w.loop.Kick() },
	})
	w.sources.Liveness = liveness.New(liveness.Config{
		Log: w.log, Node: lb.Object{Kind: config.KindNode, Name: w.node}, MembersPort: 7947,
		Cluster: Votes{w.sources.Cluster}, Asker: w.sinks.Layer2, Links: noLinks, Changed: func() { w.loop.Hurry() },
		SilenceChanged: func() { w.sinks.Report.KickState() }, KickProbe: func() { prober.Kick() },
	})
	w.sinks.Report = report.New(report.Config{
		Log: w.log, Node: w.node, Cluster: w.sources.Cluster, Layer2: w.sinks.Layer2, Liveness: w.sources.Liveness,
		Links: noLinks, Sessions: w.sinks.BGP.Sessions, Speakers: w.sources.Membership.Speakers,
		ProxyFaults: w.sources.Proxies.Faults, KeysVersion: w.sources.Membership.KeysVersion,
	})
	prober = daemon.NewLoop(daemon.LoopConfig{Log: w.log, Sync: w.sources.Liveness.Probe})
	return prober
}

func noLinks() []lb.Interface { return nil }

// TestFlags: a value that cannot work is refused with a sentence, not by a process that ends at each start.
func TestFlags(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "holdfast-system")
	for args, want := range map[string]string{
		"":                               "",
		"--metrics-listen=:7948":         "", // the heartbeats' is of UDP
		"--metrics-listen=:7947":         "--metrics-listen and --members-port both have the port 7947",
		"--metrics-listen=:9218":         "--metrics-listen and --health-listen both have the port 9218",
		"--members-port=9219":            "--debug-listen and --members-port both have the port 9219",
		"--kube-proxy-livez=":            "--kube-proxy-livez:",
		"--data-path=Other":              "",
		"--data-path=KubeProxy":          "",
		"--data-path=other":              `invalid value "other" for flag -data-path: neither KubeProxy nor Other`,
		"--kube-proxy-livez=[::1]:10256": "",
		"--kube-proxy-livez=10256":       "--kube-proxy-livez:",
		"--announce-rate=100000":         "",
		"--announce-rate=99":             "--announce-rate 99 is not between 100 and 100000",
		"--pod-link=wep --exclude-link=mgmt --exclude-link=wg": "",
		"--exclude-link=enp0s31f6-vlan17": "invalid value \"enp0s31f6-vlan17\" for flag " +
			"-exclude-link: not the beginning of a link's name",
		"--announce-rate=100001": "--announce-rate 100001 is not between",
	} {
		var s settings
		err := s.parse(append(strings.Fields(args), "--node-name=w1"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}

// TestMetrics: all parts of the speaker count their repairs under one name, which a registry accepts only if they agree
// on everything but the kind.
func TestMetrics(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "holdfast-system")
	var s settings
	must(t, s.parse([]string{"--node-name=w1"}))
	clients, err := k8s.ClientsFor(&rest.Config{Host: "http://192.0.2.3"}, "speaker")
	must(t, err)
	p, err := assemble(clients, s, slog.New(slog.DiscardHandler))
	must(t, err)
	families, err := p.registry().Gather()
	if err != nil {
		t.Error(err)
	}
	for _, f := range families {
		if f.GetName() == "holdfast_repairs_total" && len(f.GetMetric()) < 4 {
			t.Errorf("repairs of %d kinds, want one for every part", len(f.GetMetric()))
		}
	}
}

// background runs what runs until its context ends: until stop is called, or the test ends.
func background(t testing.TB, runs ...func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	for _, run := range runs {
		group.Go(func() error { return run(ctx) })
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// frontends returns frontends by address.
func frontends(list ...lb.Frontend) lb.Map[netip.Addr, *[]lb.Frontend] {
	out := map[netip.Addr]*[]lb.Frontend{}
	for _, f := range list {
		if out[f.Address] == nil {
			out[f.Address] = new([]lb.Frontend)
		}
		*out[f.Address] = append(*out[f.Address], f)
	}
	return lb.MapOf(out)
}
