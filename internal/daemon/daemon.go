// Package daemon holds what both daemons share: common flags, the log, signals
// and the exit code. It starts nothing by itself.
package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/holdfast-lb/holdfast/internal/build"
	"github.com/holdfast-lb/holdfast/internal/config"
)

// Settings are the flags of both daemons. All other settings are custom resources.
type Settings struct {
	Kubeconfig, Namespace, DaemonSet, MembersSecret string
	MetricsListen, HealthListen, DebugListen        string
	LogLevel                                        slog.Level
	Options                                         config.Options
	version                                         bool
}

// Define adds the flags to f, with healthListen as the default of --health-listen.
func (s *Settings) Define(f *flag.FlagSet, healthListen string) {
	f.BoolVar(&s.version, "version", false, "say which build this is, and exit")
	f.StringVar(&s.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; by default the cluster the process runs in")
	f.StringVar(&s.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "`namespace` Holdfast runs in")
	f.StringVar(&s.DaemonSet, "daemonset", "holdfast-speaker", "`name` of the speakers' DaemonSet")
	f.StringVar(&s.MembersSecret, "members-secret", "holdfast-members", "`name` of the Secret with the key of the speakers' membership; the controller creates it if absent")
	f.StringVar(&s.MetricsListen, "metrics-listen", ":9217", "`address` of /metrics")
	f.StringVar(&s.HealthListen, "health-listen", healthListen, "`address` of /healthz and /readyz")
	f.StringVar(&s.DebugListen, "debug-listen", "127.0.0.1:9219", "`address` of /debug/state and /debug/pprof")
	f.TextVar(&s.LogLevel, "log-level", slog.LevelInfo, "least `level` logged: debug, info, warn or error")
	f.StringVar(&s.Options.LoadBalancerClass, "load-balancer-class", "holdfast.dev/lb", "serve Services of this loadBalancerClass")
	f.BoolVar(&s.Options.Default, "default-load-balancer", true, "serve Services without a loadBalancerClass too")
	f.BoolVar(&s.Options.OpenStack.Ignore, "ignore-openstack-annotations", false, "ignore the annotations of OpenStack's cloud controller manager")
	f.Func("openstack-node-selector", "`selector` of the nodes that announce Services without one of their own", func(text string) (err error) {
		s.Options.NodeSelector, err = config.ParseNodeSelector(text)
		return err
	})
	f.BoolVar(&s.Options.NoFilter, "disable-filter", false, "do not filter traffic to Services; Holdfast's source ranges and limits have no effect")
	f.BoolVar(&s.Options.AllowInternal, "allow-internal-traffic", false, "let the cluster's own pods and nodes past source ranges, unless a Service's annotation holdfast.dev/internal-traffic says otherwise")
	f.IntVar(&s.Options.MorePorts, "max-ports", config.DefaultMorePorts, "most `ports` of all Services of a namespace together, beyond the first port of each")
	f.BoolVar(&s.Options.IgnoreExcludeLabel, "ignore-exclude-label", false, "announce also from nodes with the label node.kubernetes.io/exclude-from-external-load-balancers")
}

// errVersion: the process was asked for its version only.
var errVersion = errors.New("--version is given")

// Parse reads args and checks the settings that every daemon needs.
func (s *Settings) Parse(f *flag.FlagSet, args []string) error {
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	if s.version {
		return errVersion
	}
	if s.Options.MorePorts < 1 {
		return fmt.Errorf("--max-ports %d is not positive", s.Options.MorePorts)
	}
	if s.Namespace == "" {
		return errors.New("--namespace is not given and POD_NAMESPACE is not set")
	}
	return s.Apart()
}

// Listener is an address that a flag has the process listen on by TCP.
type Listener struct{ Flag, Address string }

// Apart returns an error if an address on which the process listens cannot be read, or has the port of another one: the
// process would end at each start.
func (s *Settings) Apart(more ...Listener) error {
	all := append([]Listener{{"metrics-listen", s.MetricsListen}, {"health-listen", s.HealthListen}, {"debug-listen", s.DebugListen}}, more...)
	for i, a := range all {
		_, port, err := net.SplitHostPort(a.Address)
		if err != nil {
			return fmt.Errorf("--%s: %w", a.Flag, err)
		}
		for _, b := range all[:i] {
			if _, taken, _ := net.SplitHostPort(b.Address); port == taken && port != "0" {
				return fmt.Errorf("--%s and --%s both have the port %s", b.Flag, a.Flag, port)
			}
		}
	}
	return nil
}

// Main parses the flags, serves until a signal or an error, and returns the
// exit code: 0, 1 after an error, 2 for invalid flags.
func Main(name string, s *Settings, parse func() error, serve func(context.Context, *slog.Logger) error) int {
	if err := parse(); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if errors.Is(err, errVersion) {
		fmt.Println(build.String(name))
		return 0
	} else if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 2
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: s.LogLevel}))
	log.Info("starting", "version", build.Version())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, log); err != nil {
		log.Error("stopped", "error", err)
		return 1
	}
	return 0
}
