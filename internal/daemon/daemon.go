// Package daemon holds what both daemons stand on: common flags, the log, which holds up nothing, signals and the exit
// code; loops and their kicks; HTTP pages, how many connections anybody may keep open, and whether something hangs. It
// starts nothing by itself.
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

// Define adds the flags to f, with healthListen as the default of --health-listen.
func (s *Settings) Define(f *flag.FlagSet, healthListen string) {
	f.BoolVar(&s.version, "version", false, "say which build this is, and exit")
	f.StringVar(&s.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; by default the cluster the process runs in")
	f.StringVar(&s.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "`namespace` Holdfast runs in")
	f.StringVar(&s.DaemonSet, "daemonset", "holdfast-speaker", "`name` of the speakers' DaemonSet")
	f.StringVar(
		&s.MembersSecret,
		"members-secret",
		"holdfast-members",
		"`name` of the Secret with the key of the speakers' membership; the controller "+
			"creates it if absent",
	)
	f.StringVar(&s.MetricsListen, "metrics-listen", ":9217", "`address` of /metrics")
	f.StringVar(
		&s.MetricsTLS,
		"metrics-tls",
		"",
		"serve /metrics by TLS, with tls.crt and tls.key of this `directory`, or with a certificate of its own: self",
	)
	f.BoolVar(
		&s.MetricsAuth,
		"metrics-auth",
		false,
		"serve /metrics by TLS to those whom the API server lets get /metrics by their token",
	)
	f.StringVar(&s.HealthListen, "health-listen", healthListen, "`address` of /healthz and /readyz")
	f.StringVar(&s.DebugListen, "debug-listen", "127.0.0.1:9219", "`address` of /debug/state and /debug/pprof")
	f.TextVar(&s.LogLevel, "log-level", slog.LevelInfo, "least `level` logged: debug, info, warn or error")
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
	all := append(
		[]Listener{
			{"metrics-listen", s.MetricsListen},
			{"health-listen", s.HealthListen},
			{"debug-listen", s.DebugListen},
		},
		more...)
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
	defer Stderr.Flush()
	if err := parse(); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if errors.Is(err, errVersion) {
		fmt.Println(buildOf(name))
		return 0
	} else if err != nil {
		fmt.Fprintf(Stderr, "%s: %v\n", name, err)
		return 2
	}
	log := slog.New(slog.NewJSONHandler(Stderr, &slog.HandlerOptions{Level: s.LogLevel}))
	log.Info("starting", "version", version)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if os.Getenv("GOGC") == "" {
		go returnMemory(ctx, memoryInterval, debug.SetGCPercent(startGarbage))
	}
	if err := serve(ctx, log); err != nil {
		log.Error("stopped", "error", err)
		return 1
	}
	return 0
}
