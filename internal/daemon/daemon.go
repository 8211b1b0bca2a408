// Package daemon is the frame of a Holdfast process: what its main function needs before it does anything of its own.
//
// It has the common flags, a log that never blocks, signals and exit codes (Main); loops that run after kicks (Loop);
// HTTP pages for metrics, health and debugging (Serve); limits for open connections (ConnLimiter); and detection of
// operations that hang (HangTimer). Flags and the environment go in; a context, a logger and an exit code come out.
//
//	var s daemon.Settings
//	flags := flag.NewFlagSet("controller", flag.ContinueOnError)
//	s.Define(flags, ":9218")
//	parse := func() error { return s.Parse(flags, os.Args[1:]) }
//	os.Exit(daemon.Main("controller", &s, parse, serve))
//
// The package must not access the API server, and starts nothing unless it is called.
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
	"runtime/debug"
	"syscall"
)

// Settings are the flags of both daemons. All other settings are custom resources.
type Settings struct {
	Kubeconfig, Namespace, DaemonSet, MembersSecret string
	MetricsListen, HealthListen, DebugListen        string
	MetricsTLS                                      string
	MetricsAuth                                     bool
	LogLevel                                        slog.Level
	version                                         bool
}

// Define adds the flags to f. healthListen is the default of --health-listen.
func (s *Settings) Define(f *flag.FlagSet, healthListen string) {
	f.BoolVar(&s.version, "version", false, "print the version and exit")

	f.StringVar(&s.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; default: the cluster that the process runs in")
	f.StringVar(&s.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "`namespace` that Holdfast runs in")
	f.StringVar(&s.DaemonSet, "daemonset", "holdfast-speaker", "`name` of the speakers' DaemonSet")
	f.StringVar(&s.MembersSecret, "members-secret", "holdfast-members",
		"`name` of the Secret with the key of the speakers' membership; the controller creates it if absent")

	f.StringVar(&s.MetricsListen, "metrics-listen", ":9217", "`address` of /metrics")
	f.StringVar(&s.MetricsTLS, "metrics-tls", "",
		"serve /metrics by TLS, with tls.crt and tls.key from this `directory`; self makes a self-signed certificate")
	f.BoolVar(&s.MetricsAuth, "metrics-auth", false,
		"serve /metrics by TLS, and only to bearers of tokens that the API server authorizes to get /metrics")

	f.StringVar(&s.HealthListen, "health-listen", healthListen, "`address` of /healthz and /readyz")
	f.StringVar(&s.DebugListen, "debug-listen", "127.0.0.1:9219", "`address` of /debug/state and /debug/pprof")
	f.TextVar(&s.LogLevel, "log-level", slog.LevelInfo, "lowest `level` to log: debug, info, warn or error")
}

// errVersion is returned by Parse if --version is given.
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
	if s.Namespace == "" {
		return errors.New("--namespace is not given and POD_NAMESPACE is not set")
	}
	return s.CheckListeners()
}

// Listener is a TCP address that the process listens on, and the flag that sets it.
type Listener struct{ Flag, Address string }

// CheckListeners returns an error if an address to listen on is invalid, or if two have the same port. Without this
// check the process would end soon after each start. more are listeners besides the three of Settings.
func (s *Settings) CheckListeners(more ...Listener) error {
	all := append([]Listener{
		{"metrics-listen", s.MetricsListen},
		{"health-listen", s.HealthListen},
		{"debug-listen", s.DebugListen},
	}, more...)

	users := map[string]string{} // flags by port
	for _, l := range all {
		_, port, err := net.SplitHostPort(l.Address)
		if err != nil {
			return fmt.Errorf("--%s: %w", l.Flag, err)
		}

		if other, ok := users[port]; ok && port != "0" {
			return fmt.Errorf("--%s and --%s both have the port %s", other, l.Flag, port)
		}
		users[port] = l.Flag
	}
	return nil
}

// Main parses the flags, serves until a signal or an error, and returns the exit code: 0, 1 after an error, 2 for
// invalid flags.
func Main(name string, s *Settings, parse func() error, serve func(context.Context, *slog.Logger) error) int {
	defer Stderr.Flush()

	err := parse()
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errVersion):
		fmt.Println(buildOf(name))
		return 0
	default:
		fmt.Fprintf(Stderr, "%s: %v\n", name, err)
		return 2
	}

	log := slog.New(slog.NewJSONHandler(Stderr, &slog.HandlerOptions{Level: s.LogLevel}))
	log.Info("starting", "version", version)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	if os.Getenv("GOGC") == "" {
		go returnMemory(ctx, memoryInterval, debug.SetGCPercent(startGCPercent))
	}

	if err := serve(ctx, log); err != nil {
		log.Error("stopped", "error", err)
		return 1
	}
	return 0
}
