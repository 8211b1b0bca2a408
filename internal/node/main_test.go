package node

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"slices"
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
