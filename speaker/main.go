// Command speaker announces addresses from one node, by ARP and NDP or by BGP, and filters the traffic to them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/divert"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/kernel"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	"github.com/holdfast-lb/holdfast/internal/peering"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/podnetwork"
	"github.com/holdfast-lb/holdfast/internal/report"
	"github.com/holdfast-lb/holdfast/internal/rt"
	"golang.org/x/sync/errgroup"
)

func main() { os.Exit(run()) }

// Bounds of --heartbeat-interval: a shorter interval mistakes the delay of a thread for a death, a longer one makes
// failover slow.
const (
	minInterval = 10 * time.Millisecond
	maxInterval = time.Second
)

// Bounds of --announce-rate: a lower rate has no room for the periodic announcements of many addresses.
const (
	minRate = 100
	maxRate = 100_000
)

// linkPrefix is a value of --pod-link and --exclude-link. A whole name has at most 15 octets.
var linkPrefix = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,14}$`)

// settings are the flags of the process.
type settings struct {
	daemon.Settings
	Options                    config.Options
	nodeName                   string
	membersPort, heartbeatPort uint
	heartbeatInterval          time.Duration
	realtime                   bool
	kubeProxyLivez             string
	podLinks, excludedLinks    []string
	relay                      bool
	announceRate               int
	announceByRequest          bool
}

// dataPathTime is how long another data path than kube-proxy's has after a boot, from the first answer of a pod on
// another node. Cilium 1.20 in place of kube-proxy needed 6 s more until it served what comes from outside.
const dataPathTime = 15 * time.Second

// settleTime is how long the data path has after the first answer of a pod on another node.
func (s *settings) settleTime() time.Duration {
	if s.Options.OtherDataPath {
		return dataPathTime
	}
	return 0
}

func (s *settings) parse(args []string) error {
	f := flag.NewFlagSet("speaker", flag.ContinueOnError)
	s.Define(f, "127.0.0.1:9218")
	s.Options.Define(f)
	s.Options.ForSpeaker = true
	f.StringVar(
		&s.nodeName,
		"node-name",
		os.Getenv("NODE_NAME"),
		"`name` of the node that this speaker runs on; by default the environment variable NODE_NAME",
	)
	f.UintVar(&s.membersPort, "members-port", 7947, "TCP and UDP `port` of the speakers' membership")
	f.Func(
		"pod-link",
		"`prefix` of the names of links that lead to pods of this node and nowhere else, beside those that network plugins use; may be repeated",
		func(text string) error { return addPrefix(&s.podLinks, text) },
	)
	f.Func(
		"exclude-link",
		"`prefix` of the names of links that announce nothing unless an L2Advertisement names them, beside docker, veth, cni and others; may "+
			"be repeated",
		func(text string) error { return addPrefix(&s.excludedLinks, text) },
	)
	f.BoolVar(
		&s.relay,
		"relay",
		true,
		"send packets of older TCP connections to the former owner of an address that moves here",
	)
	f.IntVar(
		&s.announceRate,
		"announce-rate",
		500,
		"`frames` a second that announce addresses on one link, 100 to 100000, beyond a burst of 1000",
	)
	f.BoolVar(
		&s.announceByRequest,
		"announce-by-request",
		false,
		"ask the default gateways for their own addresses from each announced one: some learn from "+
			"nothing else",
	)
	f.UintVar(&s.heartbeatPort, "heartbeat-port", 7948, "UDP `port` of the speakers' heartbeats")
	f.DurationVar(
		&s.heartbeatInterval,
		"heartbeat-interval",
		25*time.Millisecond,
		"`time` between two heartbeats, 10ms to 1s; a node is suspected after "+
			"four missed heartbeats",
	)
	f.BoolVar(
		&s.realtime,
		"heartbeat-realtime",
		true,
		"give the heartbeat process real-time priority, which needs the capability SYS_NICE; without it a "+
			"node is suspected after sixteen missed heartbeats",
	)
	f.StringVar(
		&s.kubeProxyLivez,
		"kube-proxy-livez",
		"127.0.0.1:10256",
		"`address` and port of kube-proxy's /livez: after a boot the node announces "+
			"nothing until kube-proxy has served",
	)
	if err := s.Parse(f, args); err != nil {
		return err
	}
	if s.nodeName == "" {
		return errors.New("--node-name is not given and NODE_NAME is not set")
	}
	if _, err := netip.ParseAddrPort(s.kubeProxyLivez); err != nil {
		return fmt.Errorf("--kube-proxy-livez: %w", err)
	}
	if s.Options.OtherDataPath {
		s.kubeProxyLivez, s.relay = "", false
	}
	for name, port := range map[string]uint{"members-port": s.membersPort, "heartbeat-port": s.heartbeatPort} {
		if port == 0 || port > 65535 {
			return fmt.Errorf("--%s %d is not between 1 and 65535", name, port)
		}
	}
	if s.heartbeatPort == s.membersPort {
		return fmt.Errorf("--heartbeat-port and --members-port are both %d", s.membersPort)
	}
	if err := s.CheckListeners(daemon.Listener{Flag: "members-port", Address: fmt.Sprintf(":%d", s.membersPort)}); err != nil {
		return err
	}
	if s.heartbeatInterval < minInterval || s.heartbeatInterval > maxInterval {
		return fmt.Errorf(
			"--heartbeat-interval %v is not between %v and %v",
			s.heartbeatInterval,
			minInterval,
			maxInterval,
		)
	}
	if s.announceRate < minRate || s.announceRate > maxRate {
		return fmt.Errorf("--announce-rate %d is not between %d and %d", s.announceRate, minRate, maxRate)
	}
	return nil
}

func addPrefix(to *[]string, text string) error {
	if !linkPrefix.MatchString(text) {
		return errors.New("not the beginning of a link's name: 1 to 14 letters, digits, '_', '-' and '.'")
	}
	*to = append(*to, text)
	return nil
}

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
	for _, run := range []func(context.Context) error{w.links.Run, w.layer2.Run, w.peering.Run, w.relays.Run, w.filter.table.Run} {
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
	for _, run := range []func(context.Context) error{w.cluster.Run, w.boot.Run, w.endpoints.Run, w.proxies.Run, w.kernel.Run, w.liveness.Run,
		w.prober.Run, w.witness.Run, w.owners.loop.Run, w.hang.Run, w.report.Run, w.conntrack.Run,
		daemon.NewLoop(daemon.LoopConfig{Name: "slack", Log: log, Sync: slacken}).Run} {
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

// assemble constructs all parts and starts none. They kick each other, but not before they run.
func assemble(clients k8s.Clients, s settings, log *slog.Logger) (*syncer, error) {
	w := &syncer{}
	runs := daemon.NewLoop(
		daemon.LoopConfig{
			Name:        "plan",
			Log:         log,
			Sync:        w.sync,
			Burst:       func() bool { return w.cluster.InBurst() },
			BurstFactor: planFactor,
		},
	)
	kick := runs.Kick
	cluster := k8s.New(clients, k8s.Config{
		Log:       log,
		Component: "holdfast-speaker",
		Namespace: s.Namespace,
		DaemonSet: s.DaemonSet,
		Speaker:   true,
		Proxies:   s.Options.Proxy.Service,
		Kick:      kick,
	})
	m := &membership{}
	// layer2 opens its sockets before the links become metadata.
	links := link.New(
		log,
		func() { w.layer2.Kick(); w.peering.Hurry(); w.linksChanged(w.links.Links()) },
		s.excludedLinks...)
	l2 := layer2.New(layer2.Config{
		Log:      log,
		Links:    links.Links,
		Gateways: link.Gateways,
		Timers:   layer2.Timers{Rate: s.announceRate},
		Requests: s.announceByRequest,
		Lease:    m,
		Hears:    func() bool { return w.liveness.Hears() },
		Changed:  func() { w.report.Kick() },
		Refused:  runs.Hurry,
	})
	// The other speakers learn whether there is a session.
	engine, err := beside("bgp")
	if err != nil {
		return nil, err
	}
	peers := bgp.New(
		bgp.Config{
			Log:     log,
			Command: []string{engine},
			Kick:    func() { w.peering.Kick(); w.report.KickState(); kick() },
		},
	)
	var prober *daemon.Loop
	live := liveness.New(liveness.Config{
		Log:            log,
		Node:           lb.Object{Kind: config.KindNode, Name: s.nodeName},
		BootedAt:       time.Now().Add(-rt.Boottime()),
		MembersPort:    uint16(s.membersPort),
		HeartbeatPort:  uint16(s.heartbeatPort),
		Cluster:        votes{cluster},
		HearsSome:      m.hearsSome,
		Changed:        runs.Hurry, // a death is rare, and must not wait for the pause after a run
		Asker:          l2,
		Links:          links.Links,
		SilenceChanged: func() { w.report.KickState() },
		KickProbe:      func() { prober.Kick() },
	})
	prober = daemon.NewLoop(daemon.LoopConfig{Name: "probe", Log: log, Sync: live.Probe})
	lacks := kernel.New(log, tries(s), kick)
	*w = syncer{
		node:    s.nodeName,
		options: s.Options,
		log:     log,
		loop:    runs,
		stops:   stops{hang: newHang(w, runs), markRemoved: lb.NewSignal()},
	}
	w.sources = sources{
		cluster:    cluster,
		links:      links,
		membership: m,
		liveness:   live,
		prober:     prober,
		boot:       kubeproxy.New(kubeproxy.Config{Log: log, Livez: s.kubeProxyLivez, Kick: kick}),
		podNetwork: podnetwork.New(podnetwork.Config{
			Log:    log,
			Settle: s.settleTime(),
			Kick:   kick,
			Remote: func() []netip.AddrPort { return config.PodsElsewhere(cluster.Objects(), s.nodeName) },
		}),
		endpoints: kubeproxy.NewEndpoints(log, kick),
		proxies:   divert.NewAsker(log, kick),
		kernel:    lacks,
	}
	w.sinks = sinks{
		filter: newGuard(log, s, lacks, runs.Hurry),
		relays: newRelays(log, s, links.Links, kick),
		divert: divert.New(log, func() { lacks.Recheck(); kick() }),
		layer2: l2,
		owners: &owners{
			node:    s.nodeName,
			log:     log,
			layer2:  l2,
			ask:     m.ask,
			members: m.alive,
			age:     cluster.APIAge,
			kick:    kick,
			newer:   map[netip.Addr]newer{},
			plan:    func() plan.Plan { return w.last.Load().plan() },
		},
		bgp: peers,
		peering: peering.New(peering.Config{
			Log:      log,
			BGP:      peers,
			Links:    links.Links,
			PodLinks: s.podLinks,
			Changed:  func() { w.report.KickState() },
		}),
		headstart: kubeproxy.NewHeadStart(log),
		conntrack: kubeproxy.NewSweeper(log),
		report: report.New(report.Config{
			Log:         log,
			Node:        s.nodeName,
			Cluster:     cluster,
			Layer2:      l2,
			Liveness:    live,
			Links:       links.Links,
			Sessions:    peers.Sessions,
			Speakers:    m.speakers,
			ProxyFaults: w.proxies.Faults,
		}),
	}
	w.owners.loop = daemon.NewLoop(
		daemon.LoopConfig{Name: "owners", Log: log, Sync: w.owners.turn, MinInterval: askInterval},
	)
	w.witness = newWitness(w)
	return w, nil
}
