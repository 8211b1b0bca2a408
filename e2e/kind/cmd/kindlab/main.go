// Command kindlab brings up a cluster of kind for the end-to-end tests, runs a command beside it, and takes all down
// again. What is missing, a Docker Engine, kind or the image of the nodes, it makes of packages.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/kind"
)

const usage = `Usage: kindlab [FLAGS] COMMAND

  run CMD...  bring a cluster up, run a command beside it, take the cluster down
  up          bring a cluster up, and leave it
  exec CMD... run a command beside the cluster that is up
  down        take everything down

Commands run in the network of the Docker Engine, with docker, kind, kubectl and helm in PATH and KUBECONFIG set.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kindlab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("kindlab", flag.ContinueOnError)
	var o options
	flags.StringVar(&o.proxy, "proxy", "nftables", "`mode` of kube-proxy: nftables or iptables")
	flags.StringVar(
		&o.image,
		"image",
		"",
		"`image` of the nodes; empty means an image built of packages, or kind's own where Docker is there",
	)
	flags.StringVar(
		&o.outside,
		"outside-image",
		"",
		"`image` of the hosts beside the nodes; empty means an image built here",
	)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage); flags.PrintDefaults() }
	if err := flags.Parse(args); err != nil {
		return err
	}
	command, rest := flags.Arg(0), flags.Args()
	if slices.Contains([]string{"run", "up", "down"}, command) {
		unlock, err := lock()
		if err != nil {
			return err
		}
		defer unlock()
	}
	switch {
	case command == "run" && len(rest) > 1:
		return runBeside(ctx, o, rest[1:])
	case command == "up" && len(rest) == 1:
		return up(ctx, o)
	case command == "exec" && len(rest) > 1:
		return beside(ctx, rest[1:])
	case command == "down" && len(rest) == 1:
		return down(ctx)
	case command == clusterCommand && len(rest) == 3:
		return cluster(ctx, rest[1], rest[2])
	}
	flags.Usage()
	return errors.New("unknown command")
}

// lock keeps other processes from bringing the cluster up or down. It is an abstract socket: the kernel frees it when
// its holder ends, in whatever way.
func lock() (unlock func() error, err error) {
	l, err := net.Listen("unix", "@holdfast-kindlab")
	if err != nil {
		return nil, fmt.Errorf("another kindlab is at work: %w", err)
	}
	return l.Close, nil
}

// runBeside runs a command beside a cluster that lives as long.
func runBeside(ctx context.Context, o options, argv []string) error {
	err := up(ctx, o)
	if errors.Is(err, errUp) {
		return err // it is another's
	}
	if err == nil {
		err = beside(ctx, argv)
	}
	// The context may be what failed; taking down has time of its own.
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
	defer cancel()
	return errors.Join(err, down(cleanup))
}

func up(ctx context.Context, o options) error {
	p, config, err := prepare(ctx, o)
	if err != nil {
		return err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	// What one left that was killed, or that a boot ended.
	if err := p.self(ctx, clusterCommand, "down", string(text)); err != nil {
		return err
	}
	return p.self(ctx, clusterCommand, "up", string(text))
}

func beside(ctx context.Context, argv []string) error {
	p, err := open()
	if err != nil {
		return err
	}
	return attached(p.command(ctx, argv...))
}

func down(ctx context.Context) error {
	p, err := open()
	if errors.Is(err, errNoDocker) {
		// What is left of an engine of ours that was killed.
		return stopEngine(ctx)
	}
	if err != nil {
		return err
	}
	text, err := json.Marshal(kind.Config{Dir: p.runDir()})
	if err != nil {
		return err
	}
	return errors.Join(p.self(ctx, clusterCommand, "down", string(text)), stopEngine(ctx))
}

// clusterCommand is run by the other commands, in Docker's network namespace.
const clusterCommand = "cluster"

func cluster(ctx context.Context, verb, config string) error {
	var c kind.Config
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	if verb == "down" {
		return kind.Down(ctx, c.Dir)
	}
	_, err := kind.Up(ctx, c, os.Stdout)
	return err
}

// attached runs a command with this process's input and output. At the end of the context it is interrupted, and killed
// later.
func attached(cmd *exec.Cmd) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Ctrl-C reaches it through the context only.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 2 * time.Minute
	return cmd.Run()
}
